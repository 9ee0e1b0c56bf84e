/* Consume Kafka's records straight into Arrow columns, with the librdkafka that Python's client has loaded.
 *
 *     1.  `lakebed_range_open` gets librdkafka's functions and a queue, to which one partition is assigned at `position`.
 *     2.  `lakebed_range_read` consumes records and copies them, until a table is full, the range is finished, nothing came in
 *         time, or something came that is no record in its order. What that means is left to the caller, from `position` on.
 *     3.  `lakebed_range_take` hands over the rows that were read, `lakebed_range_take_headers` their headers.
 *     4.  `lakebed_range_close` frees all.
 *
 * Most records have no header that anybody reads. So of headers only those of given names are copied, into columns of their own,
 * each with the number of its row.
 *
 * It never consumes more than is left of the range, because librdkafka waits until it has as many records as it was asked for.
 */
#include "arrow_columns.h"

#define EXPORTED __attribute__((visibility("default")))
#define BATCH_MAX 500 /* these stay in the processor's cache until they are read */
#define BATCH_MIN 32
#define PARTITION_EOF (-191)

/* rd_kafka_message_t of rdkafka.h, which is part of its stable ABI. */
struct message {
    int err;
    void *topic;
    int32_t partition;
    void *payload;
    size_t length;
    void *key;
    size_t key_length;
    int64_t offset;
    void *private_data;
};

struct client {
    int64_t (*consume)(void *queue, int timeout_ms, struct message **messages, size_t count);
    void (*destroy)(struct message *message);
    int64_t (*timestamp)(const struct message *message, int *type);
    const char *(*topic_name)(const void *topic);
    void *queue;
    int (*headers)(const struct message *message, void **headers); /* NULL: no headers are read */
    int (*header)(const void *headers, size_t number, const char **name, const void **value, size_t *length);
};

enum state { GOES_ON = 0, FULL = 1, FINISHED = 2, TROUBLE = 3 };

enum { KEY = 1, VALUE, OFFSET, TIMESTAMP, COLUMNS };

static const struct field FIELDS[COLUMNS] = {
    {.kind = STRUCT, .first_child = KEY, .children = 4},
    {.kind = TEXT},
    {.kind = TEXT},
    {.kind = INTEGER, .width = 8},
    {.kind = INTEGER, .width = 8},
};

enum { ROW = 1, NAME, CONTENT, HEADER_COLUMNS };

static const struct field HEADER_FIELDS[HEADER_COLUMNS] = {
    {.kind = STRUCT, .first_child = ROW, .children = 3},
    {.kind = INTEGER, .width = 8},
    {.kind = INTEGER, .width = 8},
    {.kind = TEXT},
};

struct range {
    struct client client;
    const char *const *names; /* of the headers that are read; NULL ends them */
    int has_headers; /* whether a record that is not taken yet has a header, of any name */
    struct column columns[COLUMNS], headers[HEADER_COLUMNS];
    struct message *messages[BATCH_MAX];
    int64_t count, next; /* messages[next..count] are still to be read */
    char *topic;
    int32_t partition;
    int64_t position, end, rows_max, bytes_max, bytes;
    double record_bytes; /* mean size of the records in the last batch; at first set high, so that few are asked for */
};

EXPORTED void lakebed_range_close(struct range *range)
{
    if (range == NULL)
        return;
    while (range->next < range->count)
        range->client.destroy(range->messages[range->next++]);
    for (int i = 0; i < COLUMNS; i++)
        free_column(&range->columns[i]);
    for (int i = 0; i < HEADER_COLUMNS; i++)
        free_column(&range->headers[i]);
    free(range->topic);
    free(range);
}

/* Returns NULL if there is no memory. `topic` is copied; `names` must stay until the range is closed. */
EXPORTED struct range *lakebed_range_open(
    const struct client *client, const char *topic, int32_t partition, int64_t position, int64_t end, int64_t rows_max,
    int64_t bytes_max, const char *const *names)
{
    struct range *range = calloc(1, sizeof *range);
    if (range == NULL)
        return NULL;
    range->client = *client;
    range->names = names;
    range->topic = strdup(topic);
    range->partition = partition;
    range->position = position;
    range->end = end;
    range->rows_max = rows_max;
    range->bytes_max = bytes_max;
    range->record_bytes = (double)bytes_max;
    if (range->topic == NULL) {
        lakebed_range_close(range);
        return NULL;
    }
    return range;
}

static int append_bytes(struct column *column, const void *bytes, size_t length)
{
    int failed = length > INT32_MAX ? TOO_LARGE : reserve(column, (int64_t)length);
    if (failed != DONE)
        return failed;
    if (length)
        memcpy(column->values + column->used, bytes, length);
    column->used += (int64_t)length;
    column->offsets[column->length + 1] = (int32_t)column->used;
    if (bytes != NULL)
        set_bit(column->validity, column->length);
    column->nulls += bytes == NULL;
    column->length++;
    return DONE;
}

static void append_integer(struct column *column, int64_t value, int is_valid)
{
    if (is_valid) {
        memcpy(column->values + 8 * column->length, &value, 8);
        set_bit(column->validity, column->length);
    }
    column->nulls += !is_valid;
    column->length++;
}

static int grow_by_one(const struct field *fields, struct column *columns, int count)
{
    int failed = DONE;
    for (int i = 1; i < count && failed == DONE; i++)
        if (columns[i].length == columns[i].capacity)
            failed = grow(&fields[i], &columns[i], columns[i].length + 1);
    return failed;
}

/* Copies the headers of given names of a message that becomes the row `row`. */
static int append_headers(struct range *range, const struct message *message, int64_t row)
{
    void *headers;
    const char *name;
    const void *value;
    size_t length;
    if (range->client.headers == NULL || range->names[0] == NULL || range->client.headers(message, &headers) != 0)
        return DONE;
    range->has_headers = 1;
    for (size_t number = 0; range->client.header(headers, number, &name, &value, &length) == 0; number++) {
        int64_t at = 0;
        while (range->names[at] != NULL && strcmp(range->names[at], name) != 0)
            at++;
        if (range->names[at] == NULL)
            continue;
        int failed = grow_by_one(HEADER_FIELDS, range->headers, HEADER_COLUMNS);
        if (failed == DONE)
            failed = append_bytes(&range->headers[CONTENT], value, length);
        if (failed != DONE)
            return failed;
        append_integer(&range->headers[ROW], row, 1);
        append_integer(&range->headers[NAME], at, 1);
        range->headers[0].length++;
        range->bytes += (int64_t)length;
    }
    return DONE;
}

/* All columns of the row, or none: the two that may fail come first, and `append_bytes` fails before it changes anything. */
static int append(struct range *range, const struct message *message)
{
    struct column *columns = range->columns;
    int failed = grow_by_one(FIELDS, columns, COLUMNS);
    if (failed != DONE)
        return failed;
    failed = reserve(&columns[VALUE], (int64_t)(message->length > INT32_MAX ? INT32_MAX : message->length));
    if (failed == DONE)
        failed = append_bytes(&columns[KEY], message->key, message->key_length);
    if (failed == DONE)
        failed = append_bytes(&columns[VALUE], message->payload, message->length);
    if (failed != DONE)
        return failed;
    int type;
    int64_t timestamp = range->client.timestamp(message, &type);
    append_integer(&columns[OFFSET], message->offset, 1);
    append_integer(&columns[TIMESTAMP], timestamp, timestamp != -1);
    columns[0].length++;
    range->bytes += (int64_t)(message->length + message->key_length);
    range->position = message->offset + 1;
    return append_headers(range, message, columns[0].length - 1);
}

/* What a message means. An end of the partition beyond the range finishes it; every other error is TROUBLE. */
static int read_message(struct range *range, const struct message *message)
{
    if (message->err == PARTITION_EOF && message->partition == range->partition && message->topic != NULL
        && strcmp(range->client.topic_name(message->topic), range->topic) == 0 && message->offset >= range->end)
        return FINISHED;
    if (message->err != 0 || message->partition != range->partition)
        return TROUBLE;
    if (message->offset >= range->end)
        return FINISHED;
    if (message->offset < range->position)
        return GOES_ON;
    int failed = append(range, message);
    if (failed != DONE)
        return failed;
    return range->position >= range->end ? FINISHED : GOES_ON;
}

static int fetch(struct range *range, int timeout_ms)
{
    int64_t wanted = BATCH_MAX, left = range->end - range->position;
    int64_t fitting = (int64_t)((double)(range->bytes_max - range->bytes) / (range->record_bytes + 1));
    if (fitting < BATCH_MIN)
        fitting = BATCH_MIN;
    wanted = fitting < wanted ? fitting : wanted;
    wanted = left < wanted ? left : wanted;
    int64_t came = range->client.consume(range->client.queue, timeout_ms, range->messages, (size_t)wanted);
    range->next = 0;
    range->count = came > 0 ? came : 0;
    size_t bytes = 0;
    for (int64_t i = 0; i < range->count; i++)
        bytes += range->messages[i]->err ? 0 : range->messages[i]->length + range->messages[i]->key_length;
    if (range->count)
        range->record_bytes = (double)bytes / (double)range->count;
    return came < 0 ? TROUBLE : came == wanted;
}

/* Returns a state, or NO_MEMORY or TOO_LARGE. GOES_ON: fewer records came than were asked for within `timeout_ms`. */
EXPORTED int lakebed_range_read(struct range *range, int timeout_ms, int64_t *position, int64_t *rows)
{
    int state = GOES_ON, is_steady = 1;
    while (state == GOES_ON) {
        if (range->columns[0].length >= range->rows_max || range->bytes >= range->bytes_max) {
            state = FULL;
        } else if (range->next < range->count) {
            state = read_message(range, range->messages[range->next]);
            range->client.destroy(range->messages[range->next++]);
        } else if (!is_steady) {
            break;
        } else {
            int fetched = fetch(range, timeout_ms);
            if (fetched == TROUBLE)
                state = TROUBLE;
            is_steady = fetched;
        }
    }
    if (state == FINISHED)
        range->position = range->end;
    *position = range->position;
    *rows = range->columns[0].length;
    return state;
}

static int take(const struct field *fields, struct column *columns, int count, struct ArrowArray *out)
{
    for (int i = 1; i < count; i++) {
        int failed = grow(&fields[i], &columns[i], 0);
        if (failed == DONE && fields[i].kind == TEXT)
            failed = reserve(&columns[i], 64);
        if (failed != DONE)
            return failed;
    }
    int failed = export_column(fields, columns, 0, out);
    if (failed != DONE)
        release_array(out);
    return failed;
}

/* Hands over the rows: key, value, offset, timestamp in milliseconds. If this returns DONE, `out` must be released. */
EXPORTED int lakebed_range_take(struct range *range, struct ArrowArray *out)
{
    range->bytes = 0;
    return take(FIELDS, range->columns, COLUMNS, out);
}

/* Hands over the headers of the rows that are taken next: row, number of the name, value. As `lakebed_range_take`.
 * `has_headers`: whether these rows have headers at all. */
EXPORTED int lakebed_range_take_headers(struct range *range, struct ArrowArray *out, int *has_headers)
{
    *has_headers = range->has_headers;
    range->has_headers = 0;
    return take(HEADER_FIELDS, range->headers, HEADER_COLUMNS, out);
}
