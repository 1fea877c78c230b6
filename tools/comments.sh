#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Doxygen's input filter for the public headers, which stay free of markup: a block of plain comments documents what
# follows it; the first block, and one that nothing follows, the file; a comment at the end of a line what stands before.
#   sh tools/comments.sh HEADER
exec awk '
    function flush(of_file) {
        if (block == "") return
        if (of_file) print first ? "/// \\file" : "/// \\file\n/// \\details"
        printf "%s", block
        block = ""
    }
    NR == 1 && /SPDX/ { first = 1; next }
    /^\/\/ ?-+( |$)/ { print ""; next }
    /^\/\/( |$)/ { sub(/\/\//, "///"); block = block $0 "\n"; next }
    { flush(first || $0 == ""); first = 0 }
    / \/\/ / { sub(/ \/\/ /, " ///< ") }
    { print }' "$1"
