// SPDX-License-Identifier: Apache-2.0
// kda-dump's verbs. Each takes an opened bundle and its own arguments, prints to standard output,
// and returns the exit status. argv[0] is the verb.
#ifndef KDA_TOOLS_DUMP_H
#define KDA_TOOLS_DUMP_H

#include "loader/bundle.h"

enum { DUMP_OK = 0, DUMP_FINDING = 1, DUMP_USAGE = 2 };

int dump_table(const kda_bundle *bundle, int argc, char **argv);  // the default: argv[0] is "table"
int dump_verify(const kda_bundle *bundle, int argc, char **argv);
int dump_extract(const kda_bundle *bundle, int argc, char **argv);
int dump_routes(const kda_bundle *bundle, int argc, char **argv);
int dump_route(const kda_bundle *bundle, int argc, char **argv);
int dump_diff(const kda_bundle *bundle, int argc, char **argv);
int dump_env(const kda_bundle *bundle, int argc, char **argv);

// "VERB: what", and where the help is, to standard error. DUMP_USAGE.
int dump_usage(const char *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The same for an option that getopt did not take. DUMP_USAGE.
int dump_bad_option(const char *verb, char **argv);
// "VERB: the error" to standard error; DUMP_USAGE for a file that cannot be read or written, else
// DUMP_FINDING.
int dump_error(const char *verb, const kda_error *err);
// Takes `--help` and nothing else; -1 to go on, else the exit status. `help` is the verb's text.
int dump_no_options(int argc, char **argv, int operands, const char *help);
kda_status dump_open(const char *path, kda_bundle **out, kda_error *err);

// Is the body in a rule of some route?
bool dump_is_routed(const kda_bundle *bundle, uint32_t body);
// "1", or "2-4" for a range.
struct dump_range {
    char text[24];
};
struct dump_range dump_tokens(uint32_t low, uint32_t high);
// One line of `routes`: the route's key without its rules, or a preference whole.
void dump_route_key(const kda_bundle *bundle, uint32_t route, char *out, size_t size);
void dump_rule(const kda_bundle *bundle, uint32_t rule, char *out, size_t size);
void dump_preference(const kda_bundle *bundle, uint32_t preference, char *out, size_t size);

#endif
