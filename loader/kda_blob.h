// SPDX-License-Identifier: Apache-2.0
//
// The bundle of libkda as bytes of your program, for one that hands it on: to another process, to a
// file, or to a libkda that it opens itself. Link libkda-blob.a; it holds nothing else. A program
// that links libkda needs none of this: kda_bundle_open_builtin opens the bundle inside.
//
// The bytes are read-only, 64-byte aligned, and hidden: they are seen within the program or shared
// object that links the archive, so that several can each have their own in one process.
#ifndef KDA_BLOB_H
#define KDA_BLOB_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const unsigned char kda_blob_begin[] __attribute__((visibility("hidden")));
extern const unsigned char kda_blob_end[] __attribute__((visibility("hidden")));

#define KDA_BLOB_SIZE ((size_t)(kda_blob_end - kda_blob_begin))

#ifdef __cplusplus
}
#endif
#endif
