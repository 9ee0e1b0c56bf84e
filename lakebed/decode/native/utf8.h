/* Whether bytes are UTF-8, as RFC 3629 says: no surrogates, nothing longer than it must be. */
#ifndef LAKEBED_UTF8_H
#define LAKEBED_UTF8_H

#include <stdint.h>
#include <string.h>

/* Bytes of the character that begins at `p`, which is not ASCII; 0 if it is not UTF-8. */
static inline int character_bytes(const uint8_t *p, const uint8_t *end)
{
#define CONTINUES(at) ((p[at] & 0xc0) == 0x80)
    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        return end - p >= 2 && CONTINUES(1) ? 2 : 0;
    if (p[0] >= 0xe0 && p[0] <= 0xef) {
        if (end - p < 3 || !CONTINUES(1) || !CONTINUES(2))
            return 0;
        return (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ? 0 : 3;
    }
    if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        if (end - p < 4 || !CONTINUES(1) || !CONTINUES(2) || !CONTINUES(3))
            return 0;
        return (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f) ? 0 : 4;
    }
    return 0;
#undef CONTINUES
}

static inline int is_utf8(const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        uint64_t block;
        while (end - p >= 8 && (memcpy(&block, p, 8), (block & 0x8080808080808080u) == 0))
            p += 8;
        while (p < end && *p < 0x80)
            p++;
        while (p < end && *p >= 0x80) {
            int bytes = character_bytes(p, end);
            if (bytes == 0)
                return 0;
            p += bytes;
        }
    }
    return 1;
}

#endif
