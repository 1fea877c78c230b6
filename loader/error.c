// SPDX-License-Identifier: Apache-2.0
// Owns how an error is written down: a status, the driver's number, and one line of text. Knows
// nothing of what failed. Invariant: the text is NUL-terminated, has no control character, and
// shows by "..." that it was cut.
#include "loader/error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void write_text(kda_error *err, const char *format, va_list args)
{
    int length = vsnprintf(err->text, sizeof err->text, format, args);
    if (length < 0) err->text[0] = 0;
    if (length >= (int)sizeof err->text) memcpy(err->text + sizeof err->text - 4, "...", 4);
    // Names and paths inside the text come from outside.
    for (char *c = err->text; *c; ++c) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
}

kda_status kda_fail(kda_error *err, kda_status status, const char *format, ...)
{
    if (!err) return status;
    va_list args;
    va_start(args, format);
    write_text(err, format, args);
    va_end(args);
    err->status = status;
    err->cuda = 0;
    return status;
}

kda_status kda_fail_driver(kda_error *err, kda_status status, int cuda, const char *format, ...)
{
    if (!err) return status;
    va_list args;
    va_start(args, format);
    write_text(err, format, args);
    va_end(args);
    err->status = status;
    err->cuda = cuda;
    return status;
}

const char *kda_status_name(kda_status status)
{
    switch (status) {
    case KDA_OK:
        return "KDA_OK";
    case KDA_E_ARGUMENT:
        return "KDA_E_ARGUMENT";
    case KDA_E_TYPE:
        return "KDA_E_TYPE";
    case KDA_E_SHAPE:
        return "KDA_E_SHAPE";
    case KDA_E_UNSUPPORTED:
        return "KDA_E_UNSUPPORTED";
    case KDA_E_LIMIT:
        return "KDA_E_LIMIT";
    case KDA_E_STRIDE:
        return "KDA_E_STRIDE";
    case KDA_E_ALIGNMENT:
        return "KDA_E_ALIGNMENT";
    case KDA_E_OVERLAP:
        return "KDA_E_OVERLAP";
    case KDA_E_NAME:
        return "KDA_E_NAME";
    case KDA_E_NO_ROUTE:
        return "KDA_E_NO_ROUTE";
    case KDA_E_CUDA_VERSION:
        return "KDA_E_CUDA_VERSION";
    case KDA_E_NOT_PREPARED:
        return "KDA_E_NOT_PREPARED";
    case KDA_E_IO:
        return "KDA_E_IO";
    case KDA_E_FORMAT:
        return "KDA_E_FORMAT";
    case KDA_E_VERSION:
        return "KDA_E_VERSION";
    case KDA_E_DIGEST:
        return "KDA_E_DIGEST";
    case KDA_E_NO_DRIVER:
        return "KDA_E_NO_DRIVER";
    case KDA_E_DRIVER:
        return "KDA_E_DRIVER";
    case KDA_E_CONTEXT_LOST:
        return "KDA_E_CONTEXT_LOST";
    case KDA_E_FORKED:
        return "KDA_E_FORKED";
    case KDA_E_NO_MEMORY:
        return "KDA_E_NO_MEMORY";
    }
    return "KDA_E_?";
}

kda_status kda_check_reserved(const char *operation, const char *owner, const uint64_t *words,
                              size_t count, kda_error *err)
{
    for (size_t i = 0; i < count; ++i) {
        if (words[i])
            return kda_fail(err, KDA_E_ARGUMENT, "%s: %sreserved[%zu] is 0x%" PRIx64 ", must be 0",
                            operation, owner, i, words[i]);
    }
    return KDA_OK;
}
