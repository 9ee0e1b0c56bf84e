/* Read Avro records into Arrow columns, as the steps of a program say (decode/typed/avro_program.py, which explains them).
 *
 * Each step reads the bytes of one value of the writer's schema and appends it to a column, or skips it. A record that is not
 * exactly one value is refused: its row is null in every column, and `faults` and `at` say why and which step found it.
 *
 *     1.  `read_one` runs a step. Steps of records, arrays, maps and unions run others, at most LEVELS_MAX deep.
 *     2.  No length or count is trusted: a length is compared with what is left, and each item takes a byte at least. Values
 *         that take none, such as the fields of a struct that is null, are counted.
 *     3.  Where a record is refused, all columns are cut back to the rows before it.
 */
#include "arrow_columns.h"
#include "utf8.h"

#define LEVELS_MAX 64
#define EXPORTED __attribute__((visibility("default")))

typedef const uint8_t *bytes;

enum code {
    NOTHING, BOOL, INT, LONG, FLOAT, DOUBLE, PREFIXED, FIXED, UUID, ENUM, ARRAY, MAP_STEP, RECORD, UNION, MEMBER, DEFAULT,
    REFUSE
};

enum fault {
    ENDS = 1, NEGATIVE, NUMBER, RANGE, TRUTH, UTF8, SYMBOL, BRANCH, BLOCK, DIGITS, REPEATED, LEVELS, LEFT,
    UNKNOWN_SYMBOL, REFUSED,
    VALUES
};

/* A symbol of an enum, or a constant; `length` is -1 for a symbol that the reader's schema lacks. */
struct span {
    bytes start;
    int64_t length;
};

struct step {
    int32_t code;
    int32_t column; /* -1: none */
    int32_t size;
    int32_t values; /* that take no bytes */
    int32_t first, children; /* in `children` of the task; of an ENUM, in `spans`. A DEFAULT has its constant in spans[size]. */
};

/* Record i is the bytes from offsets[i] to offsets[i + 1] of `data`. `faults` and `at` have zeros for each record. */
struct avro_task {
    const struct field *fields;
    const struct step *steps;
    const int32_t *children;
    const struct span *spans;
    const int32_t *offsets;
    bytes data;
    int32_t *faults, *at;
    int64_t rows, values_min, values_a_byte; /* how many values without bytes a record may have, and how many more for a byte */
    int32_t field_count, start;
};

struct reader {
    const struct field *fields;
    const struct step *steps;
    const int32_t *children;
    const struct span *spans;
    struct column *columns;
    bytes p, end;
    int64_t values, values_max;
    int32_t levels;
    int32_t fault, at;
    unsigned __int128 powers[39]; /* of ten */
    struct span *sorted; /* keys of a map */
    int64_t sorted_room;
};

/* A value is read by functions that return DONE, UNSURE if the record is refused, or a failure. */
static int refuse(struct reader *s, int32_t at, enum fault fault)
{
    s->fault = fault;
    s->at = at;
    return UNSURE;
}

static int read_long_number(struct reader *s, int32_t at, int64_t *out)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (s->p == s->end)
            return refuse(s, at, ENDS);
        uint8_t byte = *s->p++;
        if (shift == 63 && (byte & 0x7f) > 1 && byte < 0x80)
            break;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = (int64_t)(value >> 1 ^ (0 - (value & 1)));
            return DONE;
        }
    }
    return refuse(s, at, NUMBER);
}

/* Eight bytes at once, where there are so many and the number ends in them: its groups of seven bits are moved together. */
static inline int read_number(struct reader *s, int32_t at, int64_t *out)
{
    uint64_t value, ends;
    if (s->p < s->end && *s->p < 0x80) {
        value = *s->p++;
    } else if (s->end - s->p >= 8 && (memcpy(&value, s->p, 8), ends = ~value & 0x8080808080808080u)) {
        int last = __builtin_ctzll(ends); /* the highest bit of the last byte */
        value &= (uint64_t)-1 >> (63 - last);
        value = (value & 0x007f007f007f007fu) | (value & 0x7f007f007f007f00u) >> 1;
        value = (value & 0x00003fff00003fffu) | (value & 0x3fff00003fff0000u) >> 2;
        value = (value & 0x000000000fffffffu) | (value & 0x0fffffff00000000u) >> 4;
        s->p += (last + 1) / 8;
    } else {
        return read_long_number(s, at, out);
    }
    *out = (int64_t)(value >> 1 ^ (0 - (value & 1)));
    return DONE;
}

static inline int take(struct reader *s, int32_t at, int64_t count, bytes *out)
{
    if (count > s->end - s->p)
        return refuse(s, at, ENDS);
    *out = s->p;
    s->p += count;
    return DONE;
}

/* A length and as many bytes. */
static inline int read_span(struct reader *s, int32_t at, struct span *out)
{
    int failed = read_number(s, at, &out->length);
    if (failed != DONE)
        return failed;
    if (out->length < 0)
        return refuse(s, at, NEGATIVE);
    return take(s, at, out->length, &out->start);
}

/* Whether bytes of the record are UTF-8. Most texts are short and ASCII. */
static inline int is_text(const struct reader *s, struct span text)
{
    uint64_t block;
    if (text.length <= 8 && s->end - text.start >= 8) {
        memcpy(&block, text.start, 8);
        uint64_t tops = text.length == 0 ? 0 : 0x8080808080808080u >> (64 - 8 * text.length);
        if ((block & tops) == 0)
            return 1;
    }
    return is_utf8(text.start, text.start + text.length);
}

/* -- values of columns ---------------------------------------------------------------------------------------------------- */

static inline int make_room(struct reader *s, int32_t place)
{
    struct column *column = &s->columns[place];
    return column->length == column->capacity ? grow(&s->fields[place], column, column->length + 1) : DONE;
}

static inline void append(struct column *column) { set_bit(column->validity, column->length++); }

/* `end`: of what may be read behind the text. */
static int append_text(struct reader *s, int32_t place, struct span text, bytes end)
{
    struct column *column = &s->columns[place];
    int failed = make_room(s, place);
    if (failed == DONE)
        failed = reserve(column, text.length);
    if (failed != DONE)
        return failed;
    if (text.length <= 16 && end - text.start >= 16) /* columns have room for more than they need, see `reserve` */
        memcpy(column->values + column->used, text.start, 16);
    else if (text.length)
        memcpy(column->values + column->used, text.start, (size_t)text.length);
    column->used += text.length;
    column->offsets[column->length + 1] = (int32_t)column->used;
    append(column);
    return DONE;
}

static int append_decimal(struct reader *s, int32_t at, int32_t place, struct span raw)
{
    const struct field *field = &s->fields[place];
    struct column *column = &s->columns[place];
    if (raw.length == 0)
        return refuse(s, at, DIGITS);
    uint8_t sign = raw.start[0] & 0x80 ? 0xff : 0;
    for (; raw.length > 16 && *raw.start == sign; raw.length--)
        raw.start++;
    if (raw.length > 16)
        return refuse(s, at, DIGITS);
    unsigned __int128 digits = sign ? ~(unsigned __int128)0 : 0;
    for (int64_t i = 0; i < raw.length; i++)
        digits = digits << 8 | raw.start[i];
    __int128 value = (__int128)digits, limit = (__int128)s->powers[field->precision];
    if ((value < 0) != (sign != 0) || value >= limit || value <= -limit)
        return refuse(s, at, DIGITS);
    int failed = make_room(s, place);
    if (failed != DONE)
        return failed;
    memcpy(column->values + column->length * field->width, &value, 16);
    append(column);
    return DONE;
}

static inline int append_meant(struct reader *s, int32_t at, int32_t place, struct span raw)
{
    return s->fields[place].kind == DECIMAL ? append_decimal(s, at, place, raw) : append_text(s, place, raw, s->end);
}

static inline int append_number(struct reader *s, int32_t place, int64_t value)
{
    const struct field *field = &s->fields[place];
    struct column *column = &s->columns[place];
    int failed = make_room(s, place);
    if (failed != DONE)
        return failed;
    uint8_t *out = column->values + column->length * field->width;
    if (field->kind == FLOATING && field->width == 8) {
        double wide = (double)value;
        memcpy(out, &wide, 8);
    } else if (field->kind == FLOATING) {
        float narrow = (float)value;
        memcpy(out, &narrow, 4);
    } else if (field->width == 8) {
        memcpy(out, &value, 8);
    } else if (field->width == 4) {
        memcpy(out, &value, 4); /* of a little-endian machine */
    } else {
        memcpy(out, &value, (size_t)field->width);
    }
    append(column);
    return DONE;
}

static int append_floating(struct reader *s, int32_t place, bytes raw, int width)
{
    const struct field *field = &s->fields[place];
    struct column *column = &s->columns[place];
    int failed = make_room(s, place);
    if (failed != DONE)
        return failed;
    uint8_t *out = column->values + column->length * field->width;
    if (field->width == width) {
        memcpy(out, raw, (size_t)width);
    } else {
        float narrow;
        memcpy(&narrow, raw, 4);
        double wide = narrow;
        memcpy(out, &wide, 8);
    }
    append(column);
    return DONE;
}

static int append_uuid(struct reader *s, int32_t place, bytes raw)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t text[36], *out = text;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *out++ = '-';
        *out++ = (uint8_t)digits[raw[i] >> 4];
        *out++ = (uint8_t)digits[raw[i] & 15];
    }
    return append_text(s, place, (struct span){text, 36}, text + 36);
}

/* -- steps ---------------------------------------------------------------------------------------------------------------- */

static int read_values(struct reader *s, const int32_t *steps, int32_t count);

static int read_boolean(struct reader *s, int32_t at, const struct step *step)
{
    bytes byte;
    int failed = take(s, at, 1, &byte);
    if (failed != DONE)
        return failed;
    if (*byte > 1)
        return refuse(s, at, TRUTH);
    if (step->column < 0)
        return DONE;
    failed = make_room(s, step->column);
    if (failed != DONE)
        return failed;
    struct column *column = &s->columns[step->column];
    if (*byte)
        set_bit(column->values, column->length);
    append(column);
    return DONE;
}

static int read_enum(struct reader *s, int32_t at, const struct step *step)
{
    int64_t place;
    int failed = read_number(s, at, &place);
    if (failed != DONE)
        return failed;
    if (place < 0 || place >= step->children)
        return refuse(s, at, SYMBOL);
    struct span text = s->spans[step->first + place];
    if (text.length < 0)
        return refuse(s, at, UNKNOWN_SYMBOL);
    return step->column < 0 ? DONE : append_text(s, step->column, text, text.start + text.length);
}

/* Reads an item of an array, or an entry of a map. */
static inline int read_item(struct reader *s, int32_t at, const struct step *step)
{
    if (step->code == MAP_STEP) {
        struct span key;
        int failed = read_span(s, at, &key);
        if (failed == DONE && !is_text(s, key))
            failed = refuse(s, at, UTF8);
        if (failed == DONE && step->column >= 0)
            failed = append_text(s, s->fields[s->fields[step->column].first_child].first_child, key, s->end);
        if (failed != DONE)
            return failed;
    }
    int failed = read_values(s, s->children + step->first, 1);
    if (failed != DONE || step->code == ARRAY || step->column < 0)
        return failed;
    int32_t entry = s->fields[step->column].first_child;
    failed = make_room(s, entry);
    if (failed == DONE)
        append(&s->columns[entry]);
    return failed;
}

static int read_blocks(struct reader *s, int32_t at, const struct step *step)
{
    for (;;) {
        int64_t count, size;
        int failed = read_number(s, at, &count);
        if (failed != DONE || count == 0)
            return failed;
        bytes end = NULL;
        uint64_t items = (uint64_t)count;
        if (count < 0) {
            items = 0 - items;
            failed = read_number(s, at, &size);
            if (failed != DONE)
                return failed;
            if (size < 0)
                return refuse(s, at, NEGATIVE);
            if (size > s->end - s->p)
                return refuse(s, at, ENDS);
            end = s->p + size;
        }
        for (uint64_t i = 0; step->children && i < items; i++) {
            failed = read_item(s, at, step);
            if (failed != DONE)
                return failed;
        }
        if (end != NULL && end != s->p)
            return refuse(s, at, BLOCK);
    }
}

static int by_key(const void *one, const void *other)
{
    const struct span *left = one, *right = other;
    if (left->length != right->length)
        return left->length < right->length ? -1 : 1;
    return left->length ? memcmp(left->start, right->start, (size_t)left->length) : 0;
}

/* Refuses the last map of a column if it has a key twice. The keys are sorted: a hash could be made to collide. */
static int check_keys(struct reader *s, int32_t at, const struct column *keys, int64_t first)
{
    int64_t count = keys->length - first;
    if (count > s->sorted_room) {
        struct span *larger = realloc(s->sorted, (size_t)count * 2 * sizeof *larger);
        if (larger == NULL)
            return NO_MEMORY;
        s->sorted = larger;
        s->sorted_room = 2 * count;
    }
    for (int64_t i = 0; i < count; i++) {
        int32_t start = keys->offsets[first + i];
        s->sorted[i] = (struct span){keys->values + start, keys->offsets[first + i + 1] - start};
    }
    if (count > 1)
        qsort(s->sorted, (size_t)count, sizeof *s->sorted, by_key);
    for (int64_t i = 1; i < count; i++)
        if (by_key(&s->sorted[i - 1], &s->sorted[i]) == 0)
            return refuse(s, at, REPEATED);
    return DONE;
}

static int read_items(struct reader *s, int32_t at, const struct step *step)
{
    if (step->column < 0)
        return read_blocks(s, at, step);
    int failed = make_room(s, step->column);
    if (failed == DONE)
        failed = read_blocks(s, at, step);
    if (failed != DONE)
        return failed;
    const struct field *field = &s->fields[step->column];
    struct column *column = &s->columns[step->column];
    if (step->code == MAP_STEP) {
        const struct column *keys = &s->columns[s->fields[field->first_child].first_child];
        failed = check_keys(s, at, keys, column->offsets[column->length]);
        if (failed != DONE)
            return failed;
    }
    column->offsets[column->length + 1] = (int32_t)s->columns[field->first_child].length;
    append(column);
    return DONE;
}

static int read_fields(struct reader *s, const struct step *step)
{
    int failed = read_values(s, s->children + step->first, step->children);
    if (failed != DONE || step->column < 0)
        return failed;
    failed = make_room(s, step->column);
    if (failed == DONE)
        append(&s->columns[step->column]);
    return failed;
}

static int read_member(struct reader *s, const struct step *step)
{
    const struct field *field = &s->fields[step->column];
    int failed = make_room(s, step->column);
    for (int32_t i = field->first_child; i < field->first_child + field->children && failed == DONE; i++)
        failed = i == step->size ? read_values(s, s->children + step->first, 1) : append_null(s->fields, s->columns, i);
    if (failed == DONE)
        append(&s->columns[step->column]);
    return failed;
}

static int read_nested(struct reader *s, int32_t at, const struct step *step)
{
    if (s->levels == LEVELS_MAX)
        return refuse(s, at, LEVELS);
    s->levels++;
    int failed = step->code == RECORD ? read_fields(s, step)
                 : step->code == MEMBER ? read_member(s, step)
                                        : read_items(s, at, step);
    s->levels--;
    return failed;
}

static int read_default(struct reader *s, const struct step *step)
{
    bytes p = s->p, end = s->end;
    s->p = s->spans[step->size].start;
    s->end = s->p + s->spans[step->size].length;
    int failed = read_values(s, s->children + step->first, 1);
    s->p = p;
    s->end = end;
    return failed;
}

/* Reads a value with the step `at`; a union reads on with the step of its branch. */
static inline __attribute__((always_inline)) int read_one(struct reader *s, int32_t at)
{
    struct span raw;
    int64_t value;
    int failed;
again:;
    const struct step *step = &s->steps[at];
    if (step->values && (s->values += step->values) > s->values_max)
        return refuse(s, at, VALUES);
    switch ((enum code)step->code) {
    case NOTHING:
        return step->column < 0 ? DONE : append_null(s->fields, s->columns, step->column);
    case BOOL:
        return read_boolean(s, at, step);
    case INT:
    case LONG:
        failed = read_number(s, at, &value);
        if (failed == DONE && (value ^ value >> 63) >> step->size)
            return refuse(s, at, RANGE);
        return failed != DONE || step->column < 0 ? failed : append_number(s, step->column, value);
    case FLOAT:
    case DOUBLE:
        failed = take(s, at, step->code == FLOAT ? 4 : 8, &raw.start);
        if (failed != DONE || step->column < 0)
            return failed;
        return append_floating(s, step->column, raw.start, step->code == FLOAT ? 4 : 8);
    case PREFIXED:
        failed = read_span(s, at, &raw);
        if (failed == DONE && step->size && !is_text(s, raw))
            return refuse(s, at, UTF8);
        return failed != DONE || step->column < 0 ? failed : append_meant(s, at, step->column, raw);
    case FIXED:
        raw.length = step->size;
        failed = take(s, at, raw.length, &raw.start);
        return failed != DONE || step->column < 0 ? failed : append_meant(s, at, step->column, raw);
    case UUID:
        failed = take(s, at, 16, &raw.start);
        return failed != DONE ? failed : append_uuid(s, step->column, raw.start);
    case ENUM:
        return read_enum(s, at, step);
    case UNION:
        failed = read_number(s, at, &value);
        if (failed != DONE)
            return failed;
        if (value < 0 || value >= step->children)
            return refuse(s, at, BRANCH);
        at = s->children[step->first + value];
        goto again;
    case DEFAULT:
        return read_default(s, step);
    case REFUSE:
        return refuse(s, at, REFUSED);
    case ARRAY:
    case MAP_STEP:
    case RECORD:
    case MEMBER:
        break;
    }
    return read_nested(s, at, step);
}

/* The steps of a record run in one call: a call for each would take a third of the time. */
static int read_values(struct reader *s, const int32_t *steps, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        int failed = read_one(s, steps[i]);
        if (failed != DONE)
            return failed;
    }
    return DONE;
}

/* -- records -------------------------------------------------------------------------------------------------------------- */

static int read_record(struct reader *s, const struct avro_task *task, bytes p, bytes end)
{
    int64_t rows = s->columns[0].length;
    int32_t start = task->start;
    s->values = 0;
    s->values_max = task->values_min + task->values_a_byte * (end - p);
    s->p = p;
    s->end = end;
    s->levels = 0;
    int read = read_values(s, &start, 1);
    if (read == DONE && s->p != end)
        read = refuse(s, start, LEFT);
    if (read != UNSURE)
        return read;
    cut(s->fields, s->columns, 0, rows);
    read = append_null(s->fields, s->columns, 0);
    return read == DONE ? UNSURE : read;
}

static int prepare(struct reader *s, int32_t fields, int64_t rows)
{
    s->columns = calloc((size_t)fields, sizeof *s->columns);
    if (s->columns == NULL)
        return NO_MEMORY;
    s->powers[0] = 1;
    for (int i = 1; i < 39; i++)
        s->powers[i] = s->powers[i - 1] * 10;
    for (int32_t i = 0; i < fields; i++) {
        int failed = grow(&s->fields[i], &s->columns[i], rows);
        if (failed == DONE && has_bytes(s->fields[i].kind))
            failed = reserve(&s->columns[i], 64);
        if (failed != DONE)
            return failed;
    }
    return DONE;
}

/* Returns DONE, and then `out` is a struct with a row for each record, to be released; or NO_MEMORY or TOO_LARGE. */
EXPORTED int lakebed_read_avro(const struct avro_task *task, struct ArrowArray *out)
{
    struct reader s = {.fields = task->fields, .steps = task->steps, .children = task->children, .spans = task->spans};
    int failed = prepare(&s, task->field_count, task->rows);
    for (int64_t i = 0; i < task->rows && failed == DONE; i++) {
        int read = read_record(&s, task, task->data + task->offsets[i], task->data + task->offsets[i + 1]);
        if (read == UNSURE) {
            task->faults[i] = s.fault;
            task->at[i] = s.at;
        } else {
            failed = read;
        }
    }
    failed = finish_columns(s.fields, s.columns, task->field_count, failed, out);
    free(s.sorted);
    return failed;
}
