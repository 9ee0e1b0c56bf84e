/* Read Protobuf messages of one type straight into Arrow columns.
 *
 * https://protobuf.dev/programming-guides/encoding/ defines the bytes. Each record is one message. A field of the schema is read
 * into its column, any other is skipped. A record is UNSURE if its bytes are damaged, a field has another wire type than the
 * schema says, a field or a member of a oneof comes twice, a required one is missing, or a text is not UTF-8. Then its row is
 * null in every column, and the caller reads the record in another way. A record is REFUSED if few bytes stand for very many
 * values, also where it is UNSURE besides.
 *
 *     1.  `read_message` looks each field up by its number: first behind the field before it, for most messages are in order.
 *     2.  `read_field` appends to the field's column. Elements of a list may come in several pieces; they are appended as they
 *         come, and the list is closed where its message ends.
 *     3.  `close_message` gives each column that the message lacks a null, or the zero of its type.
 *     4.  Where a record is UNSURE or REFUSED, all columns are cut back to the rows before it.
 *
 * Messages nest as deep as the schema does, which is bounded; groups that are skipped nest GROUP_LEVELS_MAX deep.
 */
#include "arrow_columns.h"
#include "utf8.h"

typedef const uint8_t *position;

#define EXPORTED __attribute__((visibility("default")))
#define GROUP_LEVELS_MAX 64
#define ENTRIES_MAX 256 /* of a map: each key is compared with all before it */
#define REFUSED 2

/* A record may have so many values, and further ones for each of its bytes. */
#define VALUES_MIN 20000
#define VALUES_A_BYTE 32

/* An ENTRY of a map is a message that nobody adds fields to: one that the schema does not name makes the record UNSURE. */
enum encoding { NESTED, VARINT, ZIGZAG, FIXED, DELIMITED, GROUP, ENTRY };
enum wire_type { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_START = 3, WIRE_END = 4, WIRE_FIXED32 = 5 };
enum absence { ABSENT_NULL, ABSENT_ZERO, ABSENT_UNSURE };

/* What the wire says of a node. An element of a list, or an entry of a map, has the number of its list. */
struct member {
    uint32_t number;
    int32_t encoding;
    int32_t absence;
    int32_t oneof; /* the first node of its oneof; -1 where it is in none */
    int32_t nodes; /* itself and all below it that are null where it is */
};

struct reader {
    const struct field *fields;
    const struct member *members;
    const int32_t *by_number; /* the children of each node, in the order of their numbers, in place of their own order */
    struct column *columns;
    uint32_t *oneofs; /* by the first node of a oneof, the message that had a member of it last */
    position p, end;
    uint32_t messages;
    int64_t values, values_max;
};

static inline int read_varint(struct reader *s, uint64_t *out)
{
    uint64_t value = 0;
    if (s->p < s->end && *s->p < 0x80) {
        *out = *s->p++;
        return DONE;
    }
    for (int shift = 0; shift < 70; shift += 7) {
        if (s->p == s->end)
            return UNSURE;
        uint8_t byte = *s->p++;
        if (shift == 63 && byte > 1)
            return UNSURE;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return DONE;
        }
    }
    return UNSURE;
}

static inline int read_tag(struct reader *s, uint32_t *number, int *type)
{
    uint64_t tag;
    position start = s->p;
    if (read_varint(s, &tag) != DONE || tag > UINT32_MAX || tag < 8 || s->p - start > 5)
        return UNSURE;
    *number = (uint32_t)(tag >> 3);
    *type = (int)(tag & 7);
    return DONE;
}

/* The end of the bytes whose length stands at `p`. */
static inline int read_length(struct reader *s, position *end)
{
    uint64_t length;
    if (read_varint(s, &length) != DONE || length > (uint64_t)(s->end - s->p))
        return UNSURE;
    *end = s->p + length;
    return DONE;
}

static int skip(struct reader *s, uint32_t number, int type, int levels)
{
    uint64_t ignored;
    position end;
    int inner_type;
    uint32_t inner;
    switch (type) {
    case WIRE_VARINT:
        return read_varint(s, &ignored);
    case WIRE_FIXED64:
    case WIRE_FIXED32:
        if (s->end - s->p < (type == WIRE_FIXED64 ? 8 : 4))
            return UNSURE;
        s->p += type == WIRE_FIXED64 ? 8 : 4;
        return DONE;
    case WIRE_BYTES:
        if (read_length(s, &end) != DONE)
            return UNSURE;
        s->p = end;
        return DONE;
    case WIRE_START:
        while (levels > 0 && read_tag(s, &inner, &inner_type) == DONE) {
            if (inner_type == WIRE_END)
                return inner == number ? DONE : UNSURE;
            if (skip(s, inner, inner_type, levels - 1) != DONE)
                return UNSURE;
        }
    }
    return UNSURE;
}

/* Makes room for one value of a column, which counts as a value of the record. */
static inline int make_room(struct reader *s, int32_t node)
{
    struct column *column = &s->columns[node];
    if (++s->values > s->values_max)
        return REFUSED;
    return column->length == column->capacity ? grow(&s->fields[node], column, column->length + 1) : DONE;
}

static inline void append(struct column *column) { set_bit(column->validity, column->length++); }

static inline void put_integer(const struct field *field, struct column *column, uint64_t value)
{
    uint8_t *out = column->values + column->length * field->width;
    uint32_t narrow = (uint32_t)value;
    if (field->kind != BOOLEAN)
        memcpy(out, field->width == 8 ? (const void *)&value : &narrow, (size_t)field->width);
    else if (value)
        set_bit(column->values, column->length); /* a bit is 0 until then */
    append(column);
}

static inline int read_bytes(struct reader *s, int32_t node)
{
    struct column *column = &s->columns[node];
    position end;
    if (read_length(s, &end) != DONE || (s->fields[node].kind == TEXT && !is_utf8(s->p, end)))
        return UNSURE;
    int failed = reserve(column, end - s->p);
    if (failed != DONE)
        return failed;
    if (end > s->p)
        memcpy(column->values + column->used, s->p, (size_t)(end - s->p));
    column->used += end - s->p;
    column->offsets[column->length + 1] = (int32_t)column->used;
    append(column);
    s->p = end;
    return DONE;
}

/* Reads one number and appends it to its column. */
static inline int read_number(struct reader *s, int32_t node)
{
    const struct field *field = &s->fields[node];
    struct column *column = &s->columns[node];
    uint64_t value = 0;
    if (s->members[node].encoding == FIXED) {
        if (s->end - s->p < field->width)
            return UNSURE;
        memcpy(&value, s->p, (size_t)field->width);
        s->p += field->width;
    } else if (read_varint(s, &value) != DONE) {
        return UNSURE;
    } else if (s->members[node].encoding == ZIGZAG) {
        if (field->width == 4)
            value = (uint32_t)value;
        value = value >> 1 ^ (0 - (value & 1));
    }
    put_integer(field, column, value);
    return DONE;
}

static int read_message(struct reader *s, int32_t node, uint32_t group);

static int read_nested(struct reader *s, int32_t node)
{
    position outer = s->end, end;
    if (read_length(s, &end) != DONE)
        return UNSURE;
    s->end = end;
    int failed = read_message(s, node, 0);
    s->end = outer;
    return failed;
}

static inline int wire_type_of(const struct reader *s, int32_t node)
{
    switch (s->members[node].encoding) {
    case VARINT:
    case ZIGZAG:
        return WIRE_VARINT;
    case FIXED:
        return s->fields[node].width == 8 ? WIRE_FIXED64 : WIRE_FIXED32;
    case GROUP:
        return WIRE_START;
    default:
        return WIRE_BYTES;
    }
}

/* Reads one value and appends it to its column. */
static int read_value(struct reader *s, int32_t node)
{
    int failed = make_room(s, node);
    if (failed != DONE)
        return failed;
    switch (s->members[node].encoding) {
    case NESTED:
    case ENTRY:
        return read_nested(s, node);
    case GROUP:
        return read_message(s, node, s->members[node].number);
    case DELIMITED:
        return read_bytes(s, node);
    default:
        return read_number(s, node);
    }
}

static int read_packed(struct reader *s, int32_t node)
{
    position outer = s->end, end;
    if (read_length(s, &end) != DONE)
        return UNSURE;
    s->end = end;
    int failed = DONE;
    while (failed == DONE && s->p < end)
        failed = read_value(s, node);
    s->end = outer;
    return failed;
}

/* Whether a map's newest entry has, or may have, the key of an older one of this message. */
static int is_repeated_key(const struct reader *s, int32_t map)
{
    const struct column *column = &s->columns[map];
    int32_t node = s->fields[s->fields[map].first_child].first_child;
    const struct field *field = &s->fields[node];
    const struct column *keys = &s->columns[node];
    int64_t first = column->offsets[column->length], last = keys->length - 1;
    if (last - first >= ENTRIES_MAX)
        return 1;
    for (int64_t i = first; i < last; i++) {
        if (field->kind == BOOLEAN) {
            if (get_bit(keys->values, i) == get_bit(keys->values, last))
                return 1;
        } else if (field->kind == TEXT) {
            int32_t bytes = keys->offsets[i + 1] - keys->offsets[i];
            if (bytes == keys->offsets[last + 1] - keys->offsets[last]
                && memcmp(keys->values + keys->offsets[i], keys->values + keys->offsets[last], (size_t)bytes) == 0)
                return 1;
        } else if (memcmp(keys->values + i * field->width, keys->values + last * field->width, (size_t)field->width) == 0) {
            return 1;
        }
    }
    return 0;
}

static int read_field(struct reader *s, int32_t node, int type, uint32_t message)
{
    const struct field *field = &s->fields[node];
    if (has_items(field->kind)) {
        int32_t item = field->first_child;
        int is_number = s->members[item].encoding == VARINT || s->members[item].encoding == ZIGZAG
            || s->members[item].encoding == FIXED;
        if (is_number && type == WIRE_BYTES)
            return read_packed(s, item);
        if (type != wire_type_of(s, item))
            return UNSURE;
        int failed = read_value(s, item);
        return failed == DONE && field->kind == MAP && is_repeated_key(s, node) ? UNSURE : failed;
    }
    int32_t oneof = s->members[node].oneof;
    if (type != wire_type_of(s, node) || s->columns[node].seen == message)
        return UNSURE;
    if (oneof >= 0 && s->oneofs[oneof] == message)
        return UNSURE;
    if (oneof >= 0)
        s->oneofs[oneof] = message;
    s->columns[node].seen = message;
    return read_value(s, node);
}

static int close_message(struct reader *s, int32_t node, uint32_t message)
{
    for (int32_t i = s->fields[node].first_child; i < s->fields[node].first_child + s->fields[node].children; i++) {
        const struct field *field = &s->fields[i];
        struct column *column = &s->columns[i];
        if (!has_items(field->kind) && column->seen == message)
            continue;
        if (s->members[i].absence == ABSENT_UNSURE)
            return UNSURE;
        s->values += s->members[i].nodes - 1;
        int failed = make_room(s, i);
        if (failed == DONE && s->members[i].absence == ABSENT_NULL)
            failed = append_null(s->fields, s->columns, i);
        if (failed != DONE)
            return failed;
        if (s->members[i].absence == ABSENT_NULL)
            continue;
        if (has_items(field->kind))
            column->offsets[column->length + 1] = (int32_t)s->columns[field->first_child].length;
        else if (has_bytes(field->kind))
            column->offsets[column->length + 1] = (int32_t)column->used;
        else {
            put_integer(field, column, 0);
            continue;
        }
        append(column);
    }
    return DONE;
}

/* The child of this number, or -1. `hint` is the place behind the child that was found last. */
static int32_t child_of(const struct reader *s, const struct field *field, uint32_t number, int32_t *hint)
{
    const int32_t *children = s->by_number + field->first_child;
    int32_t low = 0, high = field->children;
    if (*hint < high && s->members[children[*hint]].number == number)
        return children[(*hint)++];
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (s->members[children[middle]].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == field->children || s->members[children[low]].number != number)
        return -1;
    *hint = low + 1;
    return children[low];
}

/* Reads the message that ends at `s->end`, or, if it is a group, at the end tag of its number. */
static int read_message(struct reader *s, int32_t node, uint32_t group)
{
    uint32_t message = ++s->messages, number;
    int32_t hint = 0;
    int type, failed = DONE;
    for (;;) {
        if (s->p == s->end) {
            if (group)
                return UNSURE;
            break;
        }
        if (read_tag(s, &number, &type) != DONE)
            return UNSURE;
        if (type == WIRE_END) {
            if (!group || number != group)
                return UNSURE;
            break;
        }
        int32_t child = child_of(s, &s->fields[node], number, &hint);
        if (child < 0 && s->members[node].encoding == ENTRY)
            return UNSURE;
        if (child < 0)
            failed = skip(s, number, type, GROUP_LEVELS_MAX);
        else {
            hint -= has_items(s->fields[child].kind); /* the next one may be of the same list */
            failed = read_field(s, child, type, message);
        }
        if (failed != DONE)
            return failed;
    }
    failed = close_message(s, node, message);
    if (failed == DONE)
        append(&s->columns[node]);
    return failed;
}

/* Counts the values of a message, up to its first damage: whoever reads it in another way must not meet too many either. */
static int count_message(struct reader *s, int32_t node, uint32_t group)
{
    const struct field *field = &s->fields[node];
    int32_t hint = 0;
    int type, failed = DONE;
    uint32_t number;
    for (int32_t i = field->first_child; i < field->first_child + field->children; i++)
        s->values += s->members[i].nodes;
    while (failed == DONE && s->p < s->end && s->values <= s->values_max) {
        if (read_tag(s, &number, &type) != DONE)
            return UNSURE;
        if (type == WIRE_END)
            return group && number == group ? DONE : UNSURE;
        int32_t child = child_of(s, field, number, &hint);
        if (child >= 0 && has_items(s->fields[child].kind))
            child = s->fields[child].first_child;
        if (child >= 0 && s->fields[child].kind == STRUCT && type == wire_type_of(s, child)) {
            position outer = s->end, end = s->end;
            if (type == WIRE_BYTES && read_length(s, &end) != DONE)
                return UNSURE;
            s->end = end;
            failed = count_message(s, child, type == WIRE_START ? number : 0);
            s->end = outer;
        } else {
            failed = skip(s, number, type, GROUP_LEVELS_MAX);
        }
    }
    return s->values > s->values_max ? REFUSED : failed;
}

static int read_record(struct reader *s, position start, position end)
{
    int64_t rows = s->columns[0].length;
    s->p = start;
    s->end = end;
    s->values = 0;
    s->values_max = VALUES_MIN + VALUES_A_BYTE * (int64_t)(end - start);
    int read = make_room(s, 0);
    if (read == DONE)
        read = read_message(s, 0, 0);
    if (read == UNSURE) {
        s->p = start;
        s->end = end;
        s->values = 0;
        read = count_message(s, 0, 0) == REFUSED ? REFUSED : UNSURE;
    }
    if (read == UNSURE || read == REFUSED) {
        cut(s->fields, s->columns, 0, rows);
        int failed = grow(&s->fields[0], &s->columns[0], rows + 1);
        s->columns[0].length++; /* the root itself is never null */
        for (int32_t i = 1; i <= s->fields[0].children && failed == DONE; i++)
            failed = append_null(s->fields, s->columns, i);
        return failed == DONE ? read : failed;
    }
    return read;
}

/* What to read, and where to put what was read.
 *
 * Record i is the bytes from offsets[i] to offsets[i + 1] of `data`. `outcome` gets DONE, UNSURE or REFUSED for each record.
 */
struct task {
    const struct field *fields;
    const struct member *members;
    const int32_t *by_number;
    const int32_t *offsets;
    const uint8_t *data;
    uint8_t *outcome;
    int64_t rows;
    int32_t field_count;
};

/* Room for the rows of a column, and of all below it; nobody knows how many elements lists have. */
static int prepare_column(struct reader *s, int32_t node, int64_t rows)
{
    const struct field *field = &s->fields[node];
    int failed = grow(field, &s->columns[node], rows);
    if (failed == DONE && has_bytes(field->kind))
        failed = reserve(&s->columns[node], 8 * rows);
    for (int32_t i = field->first_child; i < field->first_child + field->children && failed == DONE; i++)
        failed = prepare_column(s, i, has_items(field->kind) ? 64 : rows);
    return failed;
}

static int prepare(struct reader *s, const struct task *task)
{
    s->columns = calloc((size_t)task->field_count, sizeof *s->columns);
    s->oneofs = calloc((size_t)task->field_count, sizeof *s->oneofs);
    if (s->columns == NULL || s->oneofs == NULL)
        return NO_MEMORY;
    return prepare_column(s, 0, task->rows > 64 ? task->rows : 64);
}

/* Returns DONE, and then `out` is a struct of the root's children, to be released; or NO_MEMORY or TOO_LARGE. */
EXPORTED int lakebed_read_protobuf(const struct task *task, struct ArrowArray *out)
{
    struct reader s = {.fields = task->fields, .members = task->members, .by_number = task->by_number};
    int failed = prepare(&s, task);
    for (int64_t i = 0; i < task->rows && failed == DONE; i++) {
        int read = read_record(&s, task->data + task->offsets[i], task->data + task->offsets[i + 1]);
        task->outcome[i] = (uint8_t)read;
        if (read < 0)
            failed = read;
    }
    failed = finish_columns(s.fields, s.columns, task->field_count, failed, out);
    free(s.oneofs);
    return failed;
}
