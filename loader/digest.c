// SPDX-License-Identifier: Apache-2.0
// SHA-256 with the instructions that a processor has for it, else with libmd. It is most of what a
// cold load costs, and the instructions make it ten times as fast. Whether they are there is asked
// each time: the library keeps no state of its own.
#include "loader/digest.h"

#include <sha2.h>
#include <stdbool.h>
#include <string.h>

enum { BLOCK = 64, ROUNDS = 64 };

#if defined __x86_64__ || (defined __aarch64__ && !defined __clang__)
#define HARDWARE 1
// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
static const uint32_t constants[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};
#endif

// compress: takes the state, a to h, through whole blocks. Four rounds at a time, of whose sixteen
// words the oldest four make way for the next ones.
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

static bool has_instructions(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}

__attribute__((target("sha,sse4.1"))) static void compress(uint32_t state[8], const uint8_t *data,
                                                           size_t blocks)
{
    const __m128i reversed = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i *const k = (const __m128i *)constants;
    __m128i abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    __m128i cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    for (; blocks; blocks--, data += BLOCK) {
        const __m128i *const words = (const __m128i *)data, old_abef = abef, old_cdgh = cdgh;
        __m128i a = _mm_shuffle_epi8(_mm_loadu_si128(words), reversed);
        __m128i b = _mm_shuffle_epi8(_mm_loadu_si128(words + 1), reversed);
        __m128i c = _mm_shuffle_epi8(_mm_loadu_si128(words + 2), reversed);
        __m128i d = _mm_shuffle_epi8(_mm_loadu_si128(words + 3), reversed);
        for (int i = 0; i < ROUNDS / 4; i++) {
            const __m128i sum = _mm_add_epi32(a, _mm_loadu_si128(k + i));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
            const __m128i next =
                _mm_add_epi32(_mm_sha256msg1_epu32(a, b), _mm_alignr_epi8(d, c, 4));
            a = b, b = c, c = d, d = _mm_sha256msg2_epu32(next, d);
        }
        abef = _mm_add_epi32(abef, old_abef);
        cdgh = _mm_add_epi32(cdgh, old_cdgh);
    }
    uint32_t feba[4], hgdc[4];
    _mm_storeu_si128((__m128i *)feba, abef);
    _mm_storeu_si128((__m128i *)hgdc, cdgh);
    for (int i = 0; i < 2; i++) {
        state[i] = feba[3 - i];
        state[2 + i] = hgdc[3 - i];
        state[4 + i] = feba[1 - i];
        state[6 + i] = hgdc[1 - i];
    }
}
#elif defined HARDWARE
#include <arm_neon.h>
#include <sys/auxv.h>

static bool has_instructions(void)
{
    const unsigned long sha2 = 1 << 6;  // HWCAP_SHA2
    return getauxval(AT_HWCAP) & sha2;
}

__attribute__((target("+crypto"))) static void compress(uint32_t state[8], const uint8_t *data,
                                                        size_t blocks)
{
    uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
    for (; blocks; blocks--, data += BLOCK) {
        const uint32x4_t old_abcd = abcd, old_efgh = efgh;
        uint32x4_t a = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data)));
        uint32x4_t b = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16)));
        uint32x4_t c = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 32)));
        uint32x4_t d = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 48)));
        for (int i = 0; i < ROUNDS / 4; i++) {
            const uint32x4_t sum = vaddq_u32(a, vld1q_u32(constants + 4 * i)), before = abcd;
            abcd = vsha256hq_u32(abcd, efgh, sum);
            efgh = vsha256h2q_u32(efgh, before, sum);
            const uint32x4_t next = vsha256su1q_u32(vsha256su0q_u32(a, b), c, d);
            a = b, b = c, c = d, d = next;
        }
        abcd = vaddq_u32(abcd, old_abcd);
        efgh = vaddq_u32(efgh, old_efgh);
    }
    vst1q_u32(state, abcd);
    vst1q_u32(state + 4, efgh);
}
#endif

#ifdef HARDWARE
static void digest(const uint8_t *data, size_t size, uint8_t out[32])
{
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const size_t whole = size / BLOCK, left = size % BLOCK;
    compress(state, data, whole);
    // What is left, a one bit, and the length in bits at the end of a block.
    uint8_t last[2 * BLOCK] = {0};
    const size_t blocks = left < BLOCK - 8 ? 1 : 2;
    if (left) memcpy(last, data + whole * BLOCK, left);
    last[left] = 0x80;
    for (size_t i = 0; i < 8; i++)
        last[blocks * BLOCK - 1 - i] = (uint8_t)((uint64_t)size * 8 >> 8 * i);
    compress(state, last, blocks);
    for (size_t i = 0; i < 32; i++) out[i] = (uint8_t)(state[i / 4] >> (24 - i % 4 * 8));
}
#endif

void kda_sha256(const void *data, size_t size, uint8_t out[32])
{
#ifdef HARDWARE
    if (has_instructions()) {
        digest(data, size, out);
        return;
    }
#endif
    SHA2_CTX sha;
    SHA256Init(&sha);
    SHA256Update(&sha, (const uint8_t *)data, size);
    SHA256Final(out, &sha);
}
