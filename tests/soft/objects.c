// SPDX-License-Identifier: Apache-2.0
// Owns the table from handles to records. Knows of a record only its header. Invariant: a handle is
// 16 * (index + 1) + kind, far below any mapped page, and is never given to a second record; dead
// records stay until soft_reset, so that a stale handle is told from an invented one.
#include "tests/soft/state.h"

#include <stdlib.h>

static struct soft_object **objects;
static size_t object_count, object_capacity;

void *soft_object_new(enum soft_kind kind, size_t size, struct soft_context *owner)
{
    if (object_count == object_capacity) {
        size_t capacity = object_capacity ? 2 * object_capacity : 64;
        struct soft_object **grown = realloc(objects, capacity * sizeof(struct soft_object *));
        if (grown == NULL) return NULL;
        objects = grown;
        object_capacity = capacity;
    }
    struct soft_object *object = calloc(1, size);
    if (object == NULL) return NULL;
    objects[object_count++] = object;
    object->kind = kind;
    object->alive = true;
    object->handle = 16 * object_count + kind;
    object->owner = owner;
    return object;
}

void *soft_object_trace(enum soft_kind kind, const void *handle)
{
    uintptr_t value = (uintptr_t)handle, number = value / 16;
    if (value % 16 != kind || number < 1 || number > object_count) return NULL;
    return objects[number - 1];
}

void *soft_object_find(enum soft_kind kind, const void *handle)
{
    struct soft_object *object = soft_object_trace(kind, handle);
    return object != NULL && object->alive ? object : NULL;
}

void *soft_object_next(enum soft_kind kind, size_t *cursor)
{
    while (*cursor < object_count) {
        struct soft_object *object = objects[(*cursor)++];
        if (object->kind == kind && object->alive) return object;
    }
    return NULL;
}

void soft_object_forget_all(void)
{
    for (size_t i = 0; i < object_count; i++) {
        struct soft_object *object = objects[i];
        if (object->kind == SOFT_GRAPH || object->kind == SOFT_EXEC)
            soft_graph_clear((struct soft_graph *)object);
        if (object->kind == SOFT_STREAM)
            soft_graph_clear(&((struct soft_stream *)object)->recorded);
        free(object);
    }
    free(objects);
    objects = NULL;
    object_count = object_capacity = 0;
}
