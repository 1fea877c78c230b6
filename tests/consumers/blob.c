// SPDX-License-Identifier: Apache-2.0
// A program that carries the bundle and no library: writes it to standard output.
#include <kda_blob.h>

#include <stdio.h>

int main(void) { return fwrite(kda_blob_begin, 1, KDA_BLOB_SIZE, stdout) == KDA_BLOB_SIZE ? 0 : 1; }
