/* Parse JSON objects by a schema straight into Arrow columns.
 *
 * Each record is one object. Members that the schema names are read into their columns, all others are checked to be JSON and
 * skipped. A record is UNSURE if anything in it is not JSON, does not fit its column exactly, is repeated, or is of a form that
 * is not read here. So is a record with a member that differs from a column's name by the case of ASCII letters. Then its row is
 * null in every column, and the caller reads the record in another way.
 *
 *     1.  `read_object` finds each member by the order of the previous object: its key is compared with the one that was at this
 *         place then. Only where that fails, the key is looked for by name.
 *     2.  `read_value` appends to the member's column. Columns that the object lacks get a null.
 *     3.  Where a record is UNSURE, all columns are cut back to the rows before it.
 *
 * A text is copied, without escapes. An integer must be written as one. A floating-point number is the nearest one. A decimal
 * loses no digit.
 */
#define _GNU_SOURCE
#include <float.h>
#include <locale.h>
#include <math.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

#include "arrow_columns.h"
#include "json_scan.h"

#define PLACES_MAX 64
#define UNKNOWN_MAX 63
#define NOT_COUNTED (-2 - UNKNOWN_MAX)
#define OTHER_CASE (-3 - UNKNOWN_MAX)
#define NUMBER_BYTES_MAX 127
#define EXPORTED __attribute__((visibility("default")))

/* What stood at a place of the last object: the key with its quotes, and what `child_of` said of it. */
struct place {
    text key;
    int64_t length;
    int32_t child;
};

/* A member that a watched object's schema does not name, by its key without quotes. */
struct unknown {
    text name;
    int64_t length;
    int64_t node;
};

/* A member of the object `node` that is known, but not read. */
struct skipped {
    const char *name;
    int32_t length;
    int32_t node;
};

/* The name, in lower case, of a member of the watched object `node`, which is read or skipped. */
struct lower {
    const char *name;
    int32_t length;
    int32_t node;
    int32_t is_read;
};

struct parser {
    const struct field *fields;
    struct column *columns;
    struct place *places; /* PLACES_MAX for each node */
    text p, end;
    uint32_t objects;
    locale_t locale;
    const struct skipped *skipped;
    int32_t skips;
    const struct lower *lower;
    int32_t lowers;
    uint64_t *sketches; /* for each node the bits of its names in `lower` (`sketch_of`) */
    struct unknown *unknown;
    int32_t unknowns;
    uint64_t met; /* the unknown members of this record, a bit for each; the last bit for all above UNKNOWN_MAX */
};

static int read_text(struct parser *s, struct column *column)
{
    int escaped = 0;
    if (*s->p != '"')
        return UNSURE;
    text start = s->p + 1, close = string_end(start, s->end, &escaped);
    if (close == NULL)
        return UNSURE;
    int failed = reserve(column, close - start);
    if (failed != DONE)
        return failed;
    int64_t bytes = close - start;
    if (escaped) {
        bytes = unescape(start, close, column->values + column->used);
        if (bytes < 0)
            return UNSURE;
    } else if (bytes) {
        memcpy(column->values + column->used, start, (size_t)bytes);
    }
    column->used += bytes;
    column->offsets[column->length + 1] = (int32_t)column->used;
    s->p = close + 1;
    return DONE;
}

static int read_integer(const struct number *number, int width, uint8_t *out)
{
    if (number->has_point || number->has_exponent || number->significant > 19)
        return UNSURE;
    uint64_t limit = (uint64_t)1 << (8 * width - 1);
    if (number->digits >= limit + (uint64_t)number->negative)
        return UNSURE;
    int64_t value = (int64_t)(number->negative ? 0 - number->digits : number->digits);
    if (width == 8) {
        memcpy(out, &value, 8);
    } else if (width == 4) {
        int32_t narrow = (int32_t)value;
        memcpy(out, &narrow, 4);
    } else if (width == 2) {
        int16_t narrow = (int16_t)value;
        memcpy(out, &narrow, 2);
    } else {
        int8_t narrow = (int8_t)value;
        memcpy(out, &narrow, 1);
    }
    return DONE;
}

/* The nearest number: computed where digits and power of ten are exact, so that one rounding is all; else by the C library. */
static int read_floating(const struct parser *s, const struct number *number, int width, uint8_t *out)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    char copy[NUMBER_BYTES_MAX + 1];
    double value;
    int is_exact = number->significant <= 19 && number->digits <= (uint64_t)1 << 53;
    if (FLT_EVAL_METHOD == 0 && width == 8 && is_exact && number->power >= -22 && number->power <= 22) {
        value = (double)number->digits;
        value = number->power < 0 ? value / powers[-number->power] : value * powers[number->power];
        value = number->negative ? -value : value;
        memcpy(out, &value, 8);
        return DONE;
    }
    size_t bytes = (size_t)(number->end - number->start);
    if (bytes > NUMBER_BYTES_MAX)
        return UNSURE;
    memcpy(copy, number->start, bytes);
    copy[bytes] = 0;
    if (width == 4) {
        float narrow = strtof_l(copy, NULL, s->locale);
        memcpy(out, &narrow, 4);
        return isfinite(narrow) ? DONE : UNSURE;
    }
    value = strtod_l(copy, NULL, s->locale);
    memcpy(out, &value, 8);
    return isfinite(value) ? DONE : UNSURE;
}

static int read_decimal(const struct field *field, const struct number *number, uint8_t *out)
{
    int32_t excess = number->fraction - field->scale;
    text last = number->end;
    if (number->has_exponent || number->significant > 38)
        return UNSURE;
    for (; excess > 0; excess--)
        if (*--last != '0')
            return UNSURE;
    unsigned __int128 limit = 1, value = 0;
    for (int32_t i = 0; i < field->precision; i++)
        limit *= 10;
    for (text p = number->start; p < last; p++)
        if (*p >= '0' && *p <= '9')
            value = value * 10 + (*p - '0');
    for (; excess < 0; excess++) {
        if (value >= limit / 10)
            return UNSURE;
        value *= 10;
    }
    if (value >= limit)
        return UNSURE;
    __int128 whole = number->negative ? -(__int128)value : (__int128)value;
    memset(out, whole < 0 ? 0xff : 0, (size_t)field->width);
    memcpy(out, &whole, 16);
    return DONE;
}

static int read_number(struct parser *s, const struct field *field, struct column *column)
{
    struct number number;
    uint8_t *out = column->values + column->length * field->width;
    text p = number_end(s->p, s->end, &number);
    if (p == NULL)
        return UNSURE;
    s->p = p;
    if (field->kind == INTEGER)
        return read_integer(&number, field->width, out);
    return field->kind == FLOATING ? read_floating(s, &number, field->width, out) : read_decimal(field, &number, out);
}

static int read_boolean(struct parser *s, struct column *column)
{
    text p = literal_end(s->p, s->end, "true");
    if (p != NULL)
        set_bit(column->values, column->length);
    else
        p = literal_end(s->p, s->end, "false");
    s->p = p;
    return p == NULL ? UNSURE : DONE;
}

static int read_value(struct parser *s, int32_t node);

static int read_list(struct parser *s, const struct field *field, struct column *column)
{
    if (*s->p != '[')
        return UNSURE;
    s->p = space_end(s->p + 1, s->end);
    int last = s->p < s->end && *s->p == ']';
    s->p += last;
    while (!last) {
        int failed = read_value(s, field->first_child);
        if (failed != DONE)
            return failed;
        s->p = space_end(s->p, s->end);
        if (s->p == s->end || (*s->p != ',' && *s->p != ']'))
            return UNSURE;
        last = *s->p++ == ']';
        s->p = space_end(s->p, s->end);
    }
    column->offsets[column->length + 1] = (int32_t)s->columns[field->first_child].length;
    return DONE;
}

static uint8_t in_lower_case(uint8_t letter) { return letter >= 'A' && letter <= 'Z' ? letter | 0x20 : letter; }

/* A bit that two names have in common if they are the same in lower case. */
static uint64_t sketch_of(text name, int64_t length)
{
    uint64_t ends = length ? in_lower_case(name[0]) * 5u + in_lower_case(name[length - 1]) * 11u : 0;
    return (uint64_t)1 << ((ends + (uint64_t)length) & 63);
}

static int is_equal_in_lower_case(text name, const char *lower, int64_t length)
{
    for (int64_t i = 0; i < length; i++) {
        if (in_lower_case(name[i]) != (uint8_t)lower[i])
            return 0;
    }
    return 1;
}

/* OTHER_CASE or NOT_COUNTED if a member that is read or skipped has the same name but for case, else 0. Only ASCII letters are
 * compared so. Other names are the caller's to compare, and where it gets no more names, each may be one.
 */
static int32_t in_other_case(const struct parser *s, int32_t node, text name, int64_t length)
{
    if (s->sketches[node] & sketch_of(name, length))
        for (int32_t i = 0; i < s->lowers; i++) {
            const struct lower *each = &s->lower[i];
            if (each->node == node && each->length == length && is_equal_in_lower_case(name, each->name, length))
                return each->is_read ? OTHER_CASE : NOT_COUNTED;
        }
    if (s->unknowns < UNKNOWN_MAX || s->sketches[node] == 0)
        return 0;
    for (int64_t i = 0; i < length; i++)
        if (name[i] >= 0x80)
            return OTHER_CASE;
    return 0;
}

/* The child of this name; or -1 - the number of the unknown name, which is UNKNOWN_MAX for all that there is no room for; or
 * NOT_COUNTED or OTHER_CASE.
 */
static int32_t child_of(struct parser *s, int32_t node, text name, int64_t length)
{
    const struct field *field = &s->fields[node];
    for (int32_t i = field->first_child; i < field->first_child + field->children; i++)
        if (s->fields[i].name_length == length && memcmp(s->fields[i].name, name, (size_t)length) == 0)
            return i;
    if (!field->watched)
        return NOT_COUNTED;
    for (int32_t i = 0; i < s->skips; i++)
        if (s->skipped[i].node == node && s->skipped[i].length == length
            && memcmp(s->skipped[i].name, name, (size_t)length) == 0)
            return NOT_COUNTED;
    for (int32_t i = 0; i < s->unknowns; i++)
        if (s->unknown[i].node == node && s->unknown[i].length == length
            && memcmp(s->unknown[i].name, name, (size_t)length) == 0)
            return -1 - i;
    int32_t other = in_other_case(s, node, name, length);
    if (other != 0)
        return other;
    if (s->unknowns == UNKNOWN_MAX)
        return -1 - UNKNOWN_MAX;
    s->unknown[s->unknowns] = (struct unknown){name, length, node};
    return -1 - s->unknowns++;
}

/* Reads a key and what stands between it and its value. */
static int read_key(struct parser *s, int32_t node, int32_t at, int32_t *child)
{
    struct place *place = at < PLACES_MAX ? &s->places[(int64_t)node * PLACES_MAX + at] : NULL;
    if (place != NULL && place->key != NULL && s->end - s->p > place->length
        && memcmp(s->p, place->key, (size_t)place->length) == 0) {
        s->p += place->length;
        *child = place->child;
    } else {
        int escaped = 0;
        if (s->p == s->end || *s->p != '"')
            return UNSURE;
        text start = s->p, close = string_end(start + 1, s->end, &escaped);
        if (close == NULL || escaped)
            return UNSURE;
        s->p = close + 1;
        *child = child_of(s, node, start + 1, close - start - 1);
        if (place != NULL)
            *place = (struct place){start, s->p - start, *child};
    }
    s->p = space_end(s->p, s->end);
    if (s->p == s->end || *s->p != ':')
        return UNSURE;
    s->p = space_end(s->p + 1, s->end);
    return DONE;
}

static int read_member(struct parser *s, int32_t node, int32_t at, uint32_t object)
{
    int32_t child;
    int failed = read_key(s, node, at, &child);
    if (failed != DONE)
        return failed;
    if (child == OTHER_CASE)
        return UNSURE;
    if (child < 0) {
        if (child != NOT_COUNTED)
            s->met |= (uint64_t)1 << (-1 - child);
        s->p = value_end(s->p, s->end, LEVELS_MAX);
        return s->p == NULL ? UNSURE : DONE;
    }
    if (s->columns[child].seen == object)
        return UNSURE; /* repeated */
    s->columns[child].seen = object;
    return read_value(s, child);
}

static int read_object(struct parser *s, int32_t node)
{
    const struct field *field = &s->fields[node];
    uint32_t object = ++s->objects;
    if (s->p == s->end || *s->p != '{')
        return UNSURE;
    s->p = space_end(s->p + 1, s->end);
    int last = s->p < s->end && *s->p == '}';
    s->p += last;
    for (int32_t at = 0; !last; at++) {
        int failed = read_member(s, node, at, object);
        if (failed != DONE)
            return failed;
        s->p = space_end(s->p, s->end);
        if (s->p == s->end || (*s->p != ',' && *s->p != '}'))
            return UNSURE;
        last = *s->p++ == '}';
        if (!last)
            s->p = space_end(s->p, s->end);
    }
    for (int32_t i = field->first_child; i < field->first_child + field->children; i++) {
        int failed = s->columns[i].seen == object ? DONE : append_null(s->fields, s->columns, i);
        if (failed != DONE)
            return failed;
    }
    return DONE;
}

static int read_value(struct parser *s, int32_t node)
{
    const struct field *field = &s->fields[node];
    struct column *column = &s->columns[node];
    if (s->p == s->end)
        return UNSURE;
    if (*s->p == 'n') {
        s->p = literal_end(s->p, s->end, "null");
        return s->p == NULL ? UNSURE : append_null(s->fields, s->columns, node);
    }
    int failed = column->length == column->capacity ? grow(field, column, column->length + 1) : DONE;
    if (failed != DONE)
        return failed;
    switch (field->kind) {
    case TEXT:
        failed = read_text(s, column);
        break;
    case BOOLEAN:
        failed = read_boolean(s, column);
        break;
    case LIST:
        failed = read_list(s, field, column);
        break;
    case STRUCT:
        failed = read_object(s, node);
        break;
    default:
        failed = read_number(s, field, column);
    }
    if (failed == DONE)
        set_bit(column->validity, column->length++);
    return failed;
}

static int read_record(struct parser *s, text start, text end)
{
    int64_t rows = s->columns[0].length;
    s->p = space_end(start, end);
    s->end = end;
    s->met = 0;
    int read = s->p < end && *s->p == '{' ? read_value(s, 0) : UNSURE;
    if (read == DONE && space_end(s->p, end) != end)
        read = UNSURE;
    if (read == UNSURE) {
        cut(s->fields, s->columns, 0, rows);
        s->columns[0].length++;
        for (int32_t i = 1; i <= s->fields[0].children; i++) {
            int failed = append_null(s->fields, s->columns, i);
            if (failed != DONE)
                return failed;
        }
        return UNSURE;
    }
    return read;
}

static int prepare(struct parser *s, int32_t fields, int64_t rows)
{
    s->columns = calloc((size_t)fields, sizeof *s->columns);
    s->places = calloc((size_t)fields * PLACES_MAX, sizeof *s->places);
    s->sketches = calloc((size_t)fields, sizeof *s->sketches);
    s->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (s->columns == NULL || s->places == NULL || s->sketches == NULL || s->locale == (locale_t)0)
        return NO_MEMORY;
    for (int32_t i = 0; i < s->lowers; i++)
        s->sketches[s->lower[i].node] |= sketch_of((text)s->lower[i].name, s->lower[i].length);
    for (int32_t i = 0; i < fields; i++) {
        int failed = grow(&s->fields[i], &s->columns[i], rows);
        if (failed == DONE && s->fields[i].kind == TEXT)
            failed = reserve(&s->columns[i], 64);
        if (failed != DONE)
            return failed;
    }
    return DONE;
}

/* What to read, and where to put what was read.
 *
 * Record i is the bytes from offsets[i] to offsets[i + 1] of `data`. `sure` gets a byte for each record, and `met` the unknown
 * members of each that is sure. `unknown` has room for UNKNOWN_MAX names, which point into `data`.
 */
struct task {
    const struct field *fields;
    const struct skipped *skipped;
    const struct lower *lower;
    const int32_t *offsets;
    const uint8_t *data;
    uint8_t *sure;
    uint64_t *met;
    struct unknown *unknown;
    int64_t rows;
    int32_t field_count, skipped_count, lower_count, unknown_count;
};

/* Returns DONE, and then `out` is a struct of the root's children, to be released; or NO_MEMORY or TOO_LARGE. */
EXPORTED int lakebed_read_json(struct task *task, struct ArrowArray *out)
{
    struct parser s = {.fields = task->fields, .skipped = task->skipped, .skips = task->skipped_count};
    int32_t count = task->field_count;
    s.lower = task->lower;
    s.lowers = task->lower_count;
    s.unknown = task->unknown;
    int failed = prepare(&s, count, task->rows);
    for (int64_t i = 0; i < task->rows && failed == DONE; i++) {
        int read = read_record(&s, task->data + task->offsets[i], task->data + task->offsets[i + 1]);
        task->sure[i] = read == DONE;
        task->met[i] = read == DONE ? s.met : 0;
        if (read < 0)
            failed = read;
    }
    failed = finish_columns(s.fields, s.columns, count, failed, out);
    task->unknown_count = s.unknowns;
    free(s.places);
    free(s.sketches);
    if (s.locale != (locale_t)0)
        freelocale(s.locale);
    return failed;
}

/* Raised with every change of what a function takes or returns. */
EXPORTED int32_t lakebed_native_version(void) { return 9; }
