// SPDX-License-Identifier: Apache-2.0
// The bundle file: on-disk structs, shared by the packer and the loader. Depends on nothing.
//
//   header · bodies · cubins · frames · routes · rules · preferences · targets · strings · zstd
//   frames
//
// Little-endian. Each section and each frame starts at a multiple of KDA_ALIGN; the gaps are zero.
// Records refer to each other by index into their section and to text by offset into the strings,
// whose first byte is the empty string. Everything from `file_size` to `index_size` is covered by
// `index_sha256`, everything past it by the frame digests and the rule that gaps are zero. A reader
// must treat every number here as hostile until it has proved it.
#ifndef KDA_MANIFEST_FORMAT_H
#define KDA_MANIFEST_FORMAT_H

#include <stdint.h>

#define KDA_FORMAT_VERSION 1u
// High bit set, CR LF, ^Z and LF: any text-mode transfer breaks the first eight bytes.
#define KDA_MAGIC "\x8bKDA\r\n\x1a\n"
#define KDA_MAGIC_SIZE 8
#define KDA_ALIGN 64u
#define KDA_NONE UINT32_MAX  // no index

// Operators, gate kinds and index modes. The numbers are the file's and the public header's.
#define KDA_OPS(X)                                                                                 \
    X(RECURRENT, 1, "recurrent")                                                                   \
    X(PACKED, 2, "packed") X(FUSED, 3, "fused") X(VERIFY, 4, "verify") X(COMMIT, 5, "commit")
#define KDA_GATES(X)                                                                               \
    X(PRECOMPUTED, 0, "precomputed") X(LOWER_BOUND, 1, "lower_bound") X(SOFTPLUS, 2, "softplus")
#define KDA_MODES(X)                                                                               \
    X(POSITIVE_UNIQUE, 1, "positive_unique")                                                       \
    X(UNIQUE_OR_NULL, 2, "unique_or_null") X(REPEATED_POSITIVE, 3, "repeated_positive")

// Body flags.
#define KDA_BODY_PDL 1u  // begins with griddepcontrol.wait: programmatic dependent launch is safe
#define KDA_BODY_EQUAL_HEADS 2u    // HV must equal H
#define KDA_BODY_LOGIT_BETA 4u     // beta_is_logit may be 1
#define KDA_BODY_TOKEN_STRIDES 8u  // q, k, v, g and beta have five free token strides
#define KDA_BODY_SPILLS 16u        // local memory is allowed

// Head sets: bit n accepts H = 4*n.
#define KDA_HEADS_ANY 0u
#define KDA_HEADS_12 (1u << 3)
#define KDA_HEADS_16 (1u << 4)
#define KDA_HEADS_8_12_24_32_48_96 (1u << 2 | 1u << 3 | 1u << 6 | 1u << 8 | 1u << 12 | 1u << 24)

// Mode sets: bit m accepts index mode m.
#define KDA_MODES_NONE 0u
#define KDA_MODES_UNIQUE (1u << 1 | 1u << 2)
#define KDA_MODES_REPEATED (1u << 3)

// Row sets: bit n accepts N = n.
#define KDA_ROWS_ANY 0u
#define KDA_ROWS_1_2_4_8_16 (1u << 1 | 1u << 2 | 1u << 4 | 1u << 8 | 1u << 16)
#define KDA_ROWS_MAX 65535  // grid.y

// Bundle flags.
#define KDA_BUNDLE_PINNED 1u  // built by the pinned toolchain: the locks apply

struct kda_format_span {
    uint64_t offset;  // from the start of the file
    uint64_t count;   // records; bytes for the strings
};

enum {
    KDA_SPAN_BODIES,
    KDA_SPAN_CUBINS,
    KDA_SPAN_FRAMES,
    KDA_SPAN_ROUTES,
    KDA_SPAN_RULES,
    KDA_SPAN_PREFERENCES,
    KDA_SPAN_TARGETS,
    KDA_SPAN_STRINGS,
    KDA_SPAN_COUNT
};

struct kda_format_header {
    uint8_t magic[KDA_MAGIC_SIZE];
    uint32_t version;
    uint32_t header_size;      // sizeof(struct kda_format_header)
    uint8_t index_sha256[32];  // over [offsetof(file_size), index_size)
    uint64_t file_size;
    uint64_t index_size;  // header, records and strings, up to the first frame
    uint32_t flags;       // KDA_BUNDLE_*
    uint32_t zstd_version;
    struct kda_format_span spans[KDA_SPAN_COUNT];
    uint8_t padding[56];
};

struct kda_format_body {
    uint32_t name, entry, layout;  // strings: body name, entry symbol, state layout
    uint32_t op, gate, tokens_min, tokens_max;
    uint32_t split, threads, smem;
    uint32_t flags;
    uint32_t head_set;  // launch limit: accepted H, or 0 for any
    uint32_t row_set;   // launch limit: accepted N, or 0 for 1..KDA_ROWS_MAX
    uint32_t params_version, params_size;
    uint32_t state_type;  // KDA_BF16 or KDA_F32
    uint32_t mode_set;    // launch limit: accepted index modes, or 0 where the operator has none
    uint32_t reserved[7];
    uint8_t sha256[32];  // of the body file
};

struct kda_format_cubin {
    uint32_t body, target, frame;  // indices
    uint32_t toolkit, options;     // strings: "12.9.86"; the options as the image records them
    uint32_t min_cuda;             // oldest driver, 1000*major + 10*minor
    uint32_t registers, stack;     // per thread, bytes per thread; from the ELF
    uint32_t shared, barriers;     // static bytes per CTA, barriers; from the ELF
    uint32_t reserved[4];
    uint64_t offset, size;  // inside the decompressed frame
    uint8_t sha256[32];     // of the image
    uint8_t padding[24];
};

struct kda_format_frame {
    uint64_t offset, stored_size, raw_size;
    uint8_t sha256[32];  // of the stored bytes
    uint8_t padding[8];
};

struct kda_format_route {
    uint32_t op, gate, tokens_min, tokens_max;
    uint32_t head_set, state_type, mode_set;  // H, state type and index modes it is for; 0: any
    uint32_t cc;                              // 10*major + minor
    uint32_t rule_first, rule_count;
    uint32_t reserved[6];
};

enum { KDA_RULE_WORK = 1, KDA_RULE_ROWS = 2, KDA_RULE_ELSE = 3 };

struct kda_format_rule {  // den*X <= num*S + c -> body
    uint32_t kind, body;
    int64_t den, num, c;
};

struct kda_format_preference {
    uint32_t cc, op;
    uint32_t body;  // KDA_NONE: any other
    uint32_t target_count, targets[4];
};

struct kda_format_target {
    uint32_t name, floor;
    uint32_t cc_count, ccs[4];
    uint32_t reserved;
};

#if defined(__cplusplus)
#define KDA_FORMAT_ASSERT static_assert
#else
#define KDA_FORMAT_ASSERT _Static_assert
#endif
KDA_FORMAT_ASSERT(sizeof(struct kda_format_header) == 256, "header");
KDA_FORMAT_ASSERT(sizeof(struct kda_format_body) == 128, "body record");
KDA_FORMAT_ASSERT(sizeof(struct kda_format_cubin) == 128, "cubin record");
KDA_FORMAT_ASSERT(sizeof(struct kda_format_frame) == 64, "frame record");
KDA_FORMAT_ASSERT(sizeof(struct kda_format_route) == 64, "route record");
KDA_FORMAT_ASSERT(sizeof(struct kda_format_rule) == 32, "rule record");
KDA_FORMAT_ASSERT(sizeof(struct kda_format_preference) == 32, "preference record");
KDA_FORMAT_ASSERT(sizeof(struct kda_format_target) == 32, "target record");

#endif
