/* Scan JSON text: strings, numbers, and values that nobody needs. Strict: what is not RFC 8259 and UTF-8 is refused.
 *
 * Every function takes `p` < `end` or `p` == `end`, reads no byte at or behind `end`, and returns NULL where it refuses.
 */
#ifndef LAKEBED_JSON_SCAN_H
#define LAKEBED_JSON_SCAN_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "utf8.h"

#define LEVELS_MAX 64

typedef const uint8_t *text;

static inline text space_end(text p, text end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

/* The first byte that is a quote, a backslash, a control character or not ASCII; or `end`. */
static inline text plain_end(text p, text end)
{
#if defined(__SSE2__)
    while (end - p >= 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        __m128i found = _mm_cmplt_epi8(block, _mm_set1_epi8(0x20)); /* signed: bytes above 0x7f are below 0 */
        found = _mm_or_si128(found, _mm_cmpeq_epi8(block, _mm_set1_epi8('"')));
        found = _mm_or_si128(found, _mm_cmpeq_epi8(block, _mm_set1_epi8('\\')));
        int mask = _mm_movemask_epi8(found);
        if (mask)
            return p + __builtin_ctz((unsigned)mask);
        p += 16;
    }
#else
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    while (end - p >= 8) {
        uint64_t block;
        memcpy(&block, p, 8);
        uint64_t quotes = block ^ (ones * '"'), slashes = block ^ (ones * '\\');
        uint64_t found = (block - ones * 0x20) | (quotes - ones) | (slashes - ones) | block;
        if (found & tops)
            break; /* at or near: the loop below finds where */
        p += 8;
    }
#endif
    while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\')
        p++;
    return p;
}

static inline int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The code unit of the four digits behind `\u`, or -1. */
static inline int code_unit(text p, text end)
{
    int unit = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0)
            return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

/* The closing quote of the string whose content begins at `p`. */
static inline text string_end(text p, text end, int *escaped)
{
    for (;;) {
        p = plain_end(p, end);
        if (p == end || *p < 0x20)
            return NULL;
        if (*p == '"')
            return p;
        if (*p == '\\') {
            *escaped = 1;
            if (end - p < 2)
                return NULL;
            if (p[1] == 'u') {
                if (code_unit(p + 2, end) < 0)
                    return NULL;
                p += 6;
            } else if (p[1] != 0 && strchr("\"\\/bfnrt", p[1]) != NULL) {
                p += 2;
            } else {
                return NULL;
            }
        }
        while (p < end && *p >= 0x80) {
            int bytes = character_bytes(p, end);
            if (bytes == 0)
                return NULL;
            p += bytes;
        }
    }
}

static inline int put_character(uint8_t *out, uint32_t point)
{
    if (point < 0x80) {
        out[0] = (uint8_t)point;
        return 1;
    }
    int bytes = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (int i = bytes - 1; i > 0; i--, point >>= 6)
        out[i] = (uint8_t)(0x80 | (point & 0x3f));
    out[0] = (uint8_t)((bytes == 2 ? 0xc0 : bytes == 3 ? 0xe0 : 0xf0) | point);
    return bytes;
}

/* Writes the string from `p` to its closing quote `end`, which `string_end` found, without escapes. Never longer than it was.
 * Returns the bytes written, or -1 if it has half of a surrogate pair.
 */
static inline int64_t unescape(text p, text end, uint8_t *out)
{
    uint8_t *start = out;
    while (p < end) {
        if (*p != '\\') {
            *out++ = *p++;
            continue;
        }
        uint8_t c = p[1];
        if (c != 'u') {
            *out++ = c == 'b' ? '\b' : c == 'f' ? '\f' : c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : c;
            p += 2;
            continue;
        }
        uint32_t point = (uint32_t)code_unit(p + 2, end);
        p += 6;
        if (point >= 0xdc00 && point <= 0xdfff)
            return -1;
        if (point >= 0xd800 && point <= 0xdbff) {
            int low = end - p >= 6 && p[0] == '\\' && p[1] == 'u' ? code_unit(p + 2, end) : -1;
            if (low < 0xdc00 || low > 0xdfff)
                return -1;
            point = 0x10000 + ((point - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
            p += 6;
        }
        out += put_character(out, point);
    }
    return out - start;
}

/* A number as it is written: (-1)^negative * digits * 10^power, where `digits` counts if there are at most 19. */
struct number {
    text start, end;
    uint64_t digits;
    int64_t power;
    int32_t significant, fraction;
    int negative, has_point, has_exponent;
};

static inline text digits_end(text p, text end)
{
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    return p;
}

/* The end of the number that begins at `p`. */
static inline text plain_number_end(text p, text end)
{
    p += p < end && *p == '-';
    text first = p;
    p = digits_end(p, end);
    if (p == first || (*first == '0' && p - first > 1))
        return NULL;
    if (p < end && *p == '.') {
        first = ++p;
        p = digits_end(p, end);
        if (p == first)
            return NULL;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        p += p < end && (*p == '-' || *p == '+');
        first = p;
        p = digits_end(p, end);
        if (p == first)
            return NULL;
    }
    return p;
}

static inline text significant_end(text p, text end, struct number *number)
{
    uint64_t digits = number->digits;
    int32_t significant = number->significant;
    if (significant == 0)
        while (p < end && *p == '0')
            p++;
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        if (significant++ < 19)
            digits = digits * 10 + (uint64_t)(*p - '0');
    number->digits = digits;
    number->significant = significant;
    return p;
}

/* The end of the number that begins at `p`, and what it says. Refuses one of thousands of digits. */
static inline text number_end(text p, text end, struct number *number)
{
    *number = (struct number){.start = p, .negative = p < end && *p == '-'};
    text last = plain_number_end(p, end);
    if (last == NULL || last - p > 4096)
        return NULL;
    number->end = last;
    p = significant_end(p + number->negative, last, number);
    if (p < last && *p == '.') {
        text first = p + 1;
        number->has_point = 1;
        p = significant_end(first, last, number);
        number->fraction = (int32_t)(p - first);
        number->power = -number->fraction;
    }
    if (p < last) {
        int64_t exponent = 0;
        int negative = p[1] == '-';
        number->has_exponent = 1;
        for (p++; p < last; p++)
            if (*p >= '0' && exponent < 1000000)
                exponent = exponent * 10 + (*p - '0');
        number->power += negative ? -exponent : exponent;
    }
    return last;
}

static inline text literal_end(text p, text end, const char *literal)
{
    size_t length = strlen(literal);
    return (size_t)(end - p) >= length && memcmp(p, literal, length) == 0 ? p + length : NULL;
}

static text value_end(text p, text end, int levels);

static inline text member_value(text p, text end)
{
    int escaped = 0;
    if (p == end || *p != '"')
        return NULL;
    p = string_end(p + 1, end, &escaped);
    if (p == NULL)
        return NULL;
    p = space_end(p + 1, end);
    return p < end && *p == ':' ? space_end(p + 1, end) : NULL;
}

/* The end of an object or array whose first byte is at `p`. */
static text nested_end(text p, text end, int levels)
{
    uint8_t close = *p == '{' ? '}' : ']';
    p = space_end(p + 1, end);
    if (p < end && *p == close)
        return p + 1;
    for (;;) {
        if (close == '}')
            p = member_value(p, end);
        if (p != NULL)
            p = value_end(p, end, levels - 1);
        if (p == NULL)
            return NULL;
        p = space_end(p, end);
        if (p == end || (*p != ',' && *p != close))
            return NULL;
        if (*p++ == close)
            return p;
        p = space_end(p, end);
    }
}

/* The end of the value that begins at `p`. Refuses one of more than `levels` levels. */
static text value_end(text p, text end, int levels)
{
    int escaped = 0;
    if (p == end)
        return NULL;
    switch (*p) {
    case '"':
        p = string_end(p + 1, end, &escaped);
        return p == NULL ? NULL : p + 1;
    case '{':
    case '[':
        return levels > 0 ? nested_end(p, end, levels) : NULL;
    case 't':
        return literal_end(p, end, "true");
    case 'f':
        return literal_end(p, end, "false");
    case 'n':
        return literal_end(p, end, "null");
    default:
        return plain_number_end(p, end);
    }
}

#endif
