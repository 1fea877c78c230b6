// SPDX-License-Identifier: Apache-2.0
// Writes JSON, one value per line. Keys are NULL inside arrays. Nothing is checked but the nesting
// depth.
#ifndef KDA_TOOLS_JSON_H
#define KDA_TOOLS_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *out;
    int depth;
    bool more;  // the innermost object or array has a member already
};

void json_open(struct json *json, const char *key, char bracket);  // '{' or '['
void json_close(struct json *json, char bracket);  // '}' or ']'; the outermost ends the line
void json_text(struct json *json, const char *key, const char *text);
void json_number(struct json *json, const char *key, int64_t number);
void json_real(struct json *json, const char *key, double number);  // finite
void json_bool(struct json *json, const char *key, bool value);
void json_digest(struct json *json, const char *key, const uint8_t digest[32]);

#endif
