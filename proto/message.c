/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/message.h"

#include <stdalign.h>
#include <stdlib.h>

/* Larger requests get a malloc of their own, so that the slabs which protobuf-c
 * uses while it scans are given back before the message is handed out. */
#define LARGE_BYTES     4096
#define FIRST_CHUNK_MAX ((size_t)64 * 1024)
#define CHUNK_MIN       ((size_t)16 * 1024)
#define CHUNK_MAX       ((size_t)256 * 1024)
/* protobuf-c has at most 27 slabs; looking further only costs time. */
#define LARGE_LOOKUP_MAX 32

struct chunk {
	alignas(max_align_t) struct chunk *next;
};

struct large {
	alignas(max_align_t) struct large *next;
	size_t bytes;
};

/* The message follows the arena directly: freeing needs no other handle. */
struct arena {
	alignas(max_align_t) ProtobufCAllocator allocator;
	size_t budget;
	char *cursor;
	char *end;
	size_t chunk_bytes;
	struct chunk *chunks;
	struct large *larges;
	bool over_budget;
	bool out_of_memory;
};

static size_t align_up(size_t size)
{
	const size_t mask = alignof(max_align_t) - 1;

	return (size + mask) & ~mask;
}

static bool arena_charge(struct arena *arena, size_t bytes)
{
	if (bytes > arena->budget) {
		arena->over_budget = true;
		return false;
	}
	arena->budget -= bytes;
	return true;
}

static void *arena_alloc_large(struct arena *arena, size_t size)
{
	struct large *large = malloc(sizeof(*large) + size);

	if (!large) {
		arena->out_of_memory = true;
		return NULL;
	}
	large->bytes = size;
	large->next = arena->larges;
	arena->larges = large;
	return large + 1;
}

static bool arena_grow(struct arena *arena)
{
	struct chunk *chunk = malloc(sizeof(*chunk) + arena->chunk_bytes);

	if (!chunk) {
		arena->out_of_memory = true;
		return false;
	}
	chunk->next = arena->chunks;
	arena->chunks = chunk;
	arena->cursor = (char *)(chunk + 1);
	arena->end = arena->cursor + arena->chunk_bytes;
	if (arena->chunk_bytes < CHUNK_MAX)
		arena->chunk_bytes *= 2;
	return true;
}

static void *arena_alloc(void *data, size_t size)
{
	struct arena *arena = data;
	size_t bytes = align_up(size);
	char *result;

	if (size > SIZE_MAX / 2 || !arena_charge(arena, bytes))
		return NULL;
	if (bytes > LARGE_BYTES)
		return arena_alloc_large(arena, bytes);
	if (bytes > (size_t)(arena->end - arena->cursor) && !arena_grow(arena))
		return NULL;
	result = arena->cursor;
	arena->cursor += bytes;
	return result;
}

static void arena_free(void *data, void *pointer)
{
	struct arena *arena = data;
	struct large **link = &arena->larges;

	for (int i = 0; i < LARGE_LOOKUP_MAX && *link; i++, link = &(*link)->next) {
		struct large *large = *link;

		if (pointer != large + 1)
			continue;
		*link = large->next;
		arena->budget += large->bytes;
		free(large);
		return;
	}
}

static void arena_destroy(struct arena *arena)
{
	for (struct large *large = arena->larges, *next; large; large = next) {
		next = large->next;
		free(large);
	}
	for (struct chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
		next = chunk->next;
		free(chunk);
	}
	free(arena);
}

/* The first chunk is part of the arena and fits the root message whatever its size. */
static struct arena *arena_create(size_t root_bytes, size_t wire_bytes, size_t budget)
{
	size_t guess = wire_bytes < FIRST_CHUNK_MAX / 2 ? 2 * wire_bytes : FIRST_CHUNK_MAX;
	size_t first = align_up(root_bytes) + 256 + align_up(guess);
	struct arena *arena = malloc(sizeof(*arena) + first);

	if (!arena)
		return NULL;
	*arena = (struct arena){
		.allocator = {.alloc = arena_alloc, .free = arena_free, .allocator_data = arena},
		.budget = budget,
		.cursor = (char *)(arena + 1),
		.end = (char *)(arena + 1) + first,
		.chunk_bytes = CHUNK_MIN,
	};
	return arena;
}

qmla_status_t qmp_message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes,
				 size_t size, size_t budget, ProtobufCMessage **message)
{
	static const uint8_t nothing[1];
	ProtobufCMessage *unpacked;
	struct arena *arena;
	qmla_status_t status;

	if (type->sizeof_message > LARGE_BYTES)
		return QMLA_ERR_UNSUPPORTED; /* would not lie right behind the arena */
	arena = arena_create(type->sizeof_message, size, budget);
	if (!arena)
		return QMLA_ERR_NO_MEMORY;
	unpacked =
		protobuf_c_message_unpack(type, &arena->allocator, size, bytes ? bytes : nothing);
	if (unpacked) {
		*message = unpacked;
		return QMLA_OK;
	}
	status = arena->over_budget     ? QMLA_ERR_TOO_LARGE
		 : arena->out_of_memory ? QMLA_ERR_NO_MEMORY
					: QMLA_ERR_FORMAT;
	arena_destroy(arena);
	return status;
}

void qmp_message_free(ProtobufCMessage *message)
{
	if (message)
		arena_destroy((struct arena *)(void *)message - 1);
}

bool qmp_bytes_all_have_length(const ProtobufCBinaryData *values, size_t count, size_t length)
{
	for (size_t i = 0; i < count; i++) {
		if (values[i].len != length)
			return false;
	}
	return true;
}
