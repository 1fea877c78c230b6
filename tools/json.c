// SPDX-License-Identifier: Apache-2.0
// Owns the syntax of JSON: commas, indentation and escapes. Refuses to know what is written.
#include "tools/json.h"

#include <inttypes.h>

#include "loader/digest.h"

static void write_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; ++c) {
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20 || *c > 0x7e)
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

static void begin_value(struct json *json, const char *key)
{
    if (json->more) fputc(',', json->out);
    if (json->depth) fprintf(json->out, "\n%*s", 2 * json->depth, "");
    if (key) {
        write_text(json->out, key);
        fputs(": ", json->out);
    }
    json->more = true;
}

void json_open(struct json *json, const char *key, char bracket)
{
    begin_value(json, key);
    fputc(bracket, json->out);
    json->depth++;
    json->more = false;
}

void json_close(struct json *json, char bracket)
{
    json->depth--;
    if (json->more) fprintf(json->out, "\n%*s", 2 * json->depth, "");
    fputc(bracket, json->out);
    if (!json->depth) fputc('\n', json->out);
    json->more = true;
}

void json_text(struct json *json, const char *key, const char *text)
{
    begin_value(json, key);
    write_text(json->out, text);
}

void json_number(struct json *json, const char *key, int64_t number)
{
    begin_value(json, key);
    fprintf(json->out, "%" PRId64, number);
}

void json_real(struct json *json, const char *key, double number)
{
    begin_value(json, key);
    fprintf(json->out, "%.6g", number);
}

void json_bool(struct json *json, const char *key, bool value)
{
    begin_value(json, key);
    fputs(value ? "true" : "false", json->out);
}

void json_digest(struct json *json, const char *key, const uint8_t digest[32])
{
    json_text(json, key, kda_hex_of(digest).text);
}
