/* Arrow columns that grow by a value at a time, and their way out: the Arrow C data interface.
 *
 * https://arrow.apache.org/docs/format/CDataInterface.html defines struct ArrowArray.
 */
#ifndef LAKEBED_ARROW_COLUMNS_H
#define LAKEBED_ARROW_COLUMNS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

/* What a call returns. */
enum { DONE = 0, UNSURE = 1, NO_MEMORY = -1, TOO_LARGE = -2 };

/* A BYTES column is a TEXT column of any bytes. A MAP is a LIST of structs of a key and a value. */
enum kind { INTEGER = 1, FLOATING = 2, BOOLEAN = 3, TEXT = 4, DECIMAL = 5, LIST = 6, STRUCT = 7, BYTES = 8, MAP = 9 };

/* A node of the schema. The children of a node follow each other; node 0 is the root, a struct. */
struct field {
    int32_t kind;
    int32_t width; /* bytes of a value */
    int32_t precision, scale;
    int32_t first_child, children;
    const char *name;
    int32_t name_length;
    int32_t watched; /* whether members are counted that the schema does not name */
};

/* `values` has fixed-width values, bits (BOOLEAN), or bytes (TEXT, BYTES: `used` of them, of `room`). */
struct column {
    int64_t length, nulls, capacity;
    uint8_t *validity, *values;
    int32_t *offsets;
    int64_t used, room;
    uint32_t seen; /* the object that had this member last */
};

#define BITMAP_BYTES(rows) (((rows) + 7) / 8)

static inline int has_bytes(int kind) { return kind == TEXT || kind == BYTES; }

static inline int has_items(int kind) { return kind == LIST || kind == MAP; }

static inline int has_offsets(int kind) { return has_bytes(kind) || has_items(kind); }

static inline int64_t value_bytes(const struct field *field, int64_t rows)
{
    if (field->kind == BOOLEAN)
        return BITMAP_BYTES(rows);
    return field->kind == INTEGER || field->kind == FLOATING || field->kind == DECIMAL ? rows * field->width : 0;
}

/* Enlarges a buffer. The new bytes are zero, so that a bit is a null, or false, until it is set. */
static inline int enlarge(uint8_t **buffer, int64_t old, int64_t bytes)
{
    uint8_t *moved = realloc(*buffer, (size_t)bytes + 64);
    if (moved == NULL)
        return NO_MEMORY;
    memset(moved + old, 0, (size_t)(bytes - old) + 64);
    *buffer = moved;
    return DONE;
}

static inline int grow(const struct field *field, struct column *column, int64_t rows)
{
    int64_t old = column->capacity;
    if (rows <= old && column->validity != NULL)
        return DONE;
    if (rows < 2 * old)
        rows = 2 * old;
    if (rows > INT32_MAX - 64)
        return TOO_LARGE;
    if (enlarge(&column->validity, BITMAP_BYTES(old), BITMAP_BYTES(rows)) != DONE)
        return NO_MEMORY;
    if (has_offsets(field->kind)) {
        uint8_t *offsets = (uint8_t *)column->offsets;
        int failed = enlarge(&offsets, 4 * (old ? old + 1 : 0), 4 * (rows + 1));
        column->offsets = (int32_t *)offsets;
        if (failed != DONE)
            return NO_MEMORY;
    } else if (enlarge(&column->values, value_bytes(field, old), value_bytes(field, rows)) != DONE) {
        return NO_MEMORY;
    }
    column->capacity = rows;
    return DONE;
}

/* Makes room for `more` bytes of text. */
static inline int reserve(struct column *column, int64_t more)
{
    int64_t bytes = column->used + more;
    if (bytes <= column->room)
        return DONE;
    if (bytes > INT32_MAX)
        return TOO_LARGE;
    if (bytes < 2 * column->room)
        bytes = 2 * column->room;
    uint8_t *moved = realloc(column->values, (size_t)bytes + 64);
    if (moved == NULL)
        return NO_MEMORY;
    column->values = moved;
    column->room = bytes;
    return DONE;
}

static inline void set_bit(uint8_t *bits, int64_t at) { bits[at >> 3] |= (uint8_t)(1u << (at & 7)); }

static inline void clear_bit(uint8_t *bits, int64_t at) { bits[at >> 3] &= (uint8_t)~(1u << (at & 7)); }

static inline int get_bit(const uint8_t *bits, int64_t at) { return bits[at >> 3] >> (at & 7) & 1; }

/* Appends a null. A null struct has a null in each child. */
static inline int append_null(const struct field *fields, struct column *columns, int32_t node)
{
    const struct field *field = &fields[node];
    struct column *column = &columns[node];
    int failed = column->length == column->capacity ? grow(field, column, column->length + 1) : DONE;
    if (failed != DONE)
        return failed;
    if (has_offsets(field->kind))
        column->offsets[column->length + 1] = column->offsets[column->length];
    column->length++;
    column->nulls++;
    for (int32_t i = 0; field->kind == STRUCT && i < field->children && failed == DONE; i++)
        failed = append_null(fields, columns, field->first_child + i);
    return failed;
}

/* Cuts a column, and all below it, back to `rows`. */
static inline void cut(const struct field *fields, struct column *columns, int32_t node, int64_t rows)
{
    const struct field *field = &fields[node];
    struct column *column = &columns[node];
    if (rows < column->length) {
        for (int64_t row = rows; row < column->length; row++) {
            column->nulls -= !get_bit(column->validity, row);
            clear_bit(column->validity, row);
            if (field->kind == BOOLEAN)
                clear_bit(column->values, row);
        }
        column->length = rows;
    }
    if (has_bytes(field->kind))
        column->used = column->offsets[rows];
    for (int32_t i = 0; i < field->children; i++)
        cut(fields, columns, field->first_child + i, has_items(field->kind) ? column->offsets[rows] : rows);
}

static inline void free_column(struct column *column)
{
    free(column->validity);
    free(column->values);
    free(column->offsets);
    memset(column, 0, sizeof *column);
}

static void release_array(struct ArrowArray *array)
{
    for (int64_t i = 0; i < array->n_children; i++) {
        struct ArrowArray *child = array->children[i];
        if (child != NULL && child->release != NULL)
            child->release(child);
        free(child);
    }
    for (int64_t i = 0; i < array->n_buffers; i++)
        free((void *)array->buffers[i]);
    free(array->children);
    free(array->buffers);
    array->release = NULL;
}

/* Hands the buffers of column `node`, and of all below it, to `array`. After a failure `array` can be released too. */
static int export_column(const struct field *fields, struct column *columns, int32_t node, struct ArrowArray *array)
{
    const struct field *field = &fields[node];
    struct column *column = &columns[node];
    memset(array, 0, sizeof *array);
    array->release = release_array;
    array->buffers = calloc(3, sizeof(void *));
    array->children = calloc((size_t)field->children + 1, sizeof(void *));
    if (array->buffers == NULL || array->children == NULL)
        return NO_MEMORY;
    array->length = column->length;
    array->null_count = column->nulls;
    if (column->nulls)
        array->buffers[0] = column->validity;
    else
        free(column->validity);
    array->n_buffers = 1;
    if (has_offsets(field->kind))
        array->buffers[array->n_buffers++] = column->offsets;
    if (has_bytes(field->kind)) {
        uint8_t *fitted = realloc(column->values, (size_t)column->used + 64);
        column->values = fitted == NULL ? column->values : fitted;
    }
    if (field->kind != STRUCT && !has_items(field->kind))
        array->buffers[array->n_buffers++] = column->values;
    else
        free(column->values);
    memset(column, 0, sizeof *column);
    for (int32_t i = 0; i < field->children; i++) {
        struct ArrowArray *child = calloc(1, sizeof *child);
        if (child == NULL)
            return NO_MEMORY;
        array->children[array->n_children++] = child;
        int failed = export_column(fields, columns, field->first_child + i, child);
        if (failed != DONE)
            return failed;
    }
    return DONE;
}

/* Ends a reader: hands its columns to `out`, unless it `failed`, and frees what is left. Returns DONE or why it failed. */
static inline int finish_columns(const struct field *fields, struct column *columns, int32_t count, int failed,
                                 struct ArrowArray *out)
{
    if (failed == DONE) {
        failed = export_column(fields, columns, 0, out);
        if (failed != DONE)
            release_array(out);
    }
    for (int32_t i = 0; columns != NULL && i < count; i++)
        free_column(&columns[i]);
    free(columns);
    return failed;
}

#endif
