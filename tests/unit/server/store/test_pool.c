/* SPDX-License-Identifier: Apache-2.0 */
#include "../cmocka_first.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/store/pool.h"

static struct qms_arena *arena_of(uint64_t bytes)
{
	struct qms_arena_config config = {.bytes = bytes};
	struct qms_arena *arena;

	assert_int_equal(qms_arena_create(&config, &arena), QMLA_OK);
	return arena;
}

static void arena_is_writable_here_and_nowhere_else(void **state)
{
	struct qms_arena *arena = arena_of(10000);
	int fd = qms_arena_fd(arena);
	char *base = qms_arena_base(arena);
	void *other;

	(void)state;
	assert_int_equal(qms_arena_bytes(arena), 12288);
	memset(base, 7, 12288);
	/* A peer that gets the descriptor can map it to read, not to write or resize. */
	other = mmap(NULL, 12288, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(other, MAP_FAILED);
	assert_int_equal(((char *)other)[12287], 7);
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(ftruncate(fd, 4096), -1);
	assert_int_equal(write(fd, "x", 1), -1);
	munmap(other, 12288);
	qms_arena_destroy(arena);
	qms_arena_destroy(NULL);
}

static void prefault_takes_the_memory(void **state)
{
	struct qms_arena_config config = {.bytes = 1 << 20, .prefault = true};
	unsigned char resident[256];
	struct qms_arena *arena;

	(void)state;
	assert_int_equal(qms_arena_create(&config, &arena), QMLA_OK);
	assert_int_equal(mincore(qms_arena_base(arena), 1 << 20, resident), 0);
	for (int i = 0; i < 256; i++)
		assert_true(resident[i] & 1);
	qms_arena_destroy(arena);
}

static void impossible_arenas_are_refused(void **state)
{
	struct qms_arena_config config = {.bytes = 0};
	struct qms_arena *arena = (struct qms_arena *)state;

	assert_int_equal(qms_arena_create(&config, &arena), QMLA_ERR_INVALID_ARGUMENT);
	config.bytes = UINT64_MAX;
	assert_int_equal(qms_arena_create(&config, &arena), QMLA_ERR_INVALID_ARGUMENT);
	/* More than an address space: an error, not a crash. */
	config.bytes = UINT64_C(1) << 50;
	assert_int_equal(qms_arena_create(&config, &arena), QMLA_ERR_NO_MEMORY);
	assert_ptr_equal(arena, state);
}

static void slots_are_equal_and_apart(void **state)
{
	struct qms_arena *arena = arena_of(10 * 1024);
	struct qms_pool *pool;
	uint32_t number;
	bool seen[12] = {false};

	(void)state;
	assert_int_equal(qms_pool_create(arena, 1024, &pool), QMLA_OK);
	assert_int_equal(qms_pool_slots(pool), 12); /* 12,288 bytes after rounding to pages */
	for (int i = 0; i < 12; i++) {
		assert_int_equal(qms_pool_take(pool, &number), QMLA_OK);
		assert_true(number < 12 && !seen[number]);
		seen[number] = true;
		assert_int_equal(qms_pool_offset(pool, number), number * 1024);
		assert_ptr_equal(qms_pool_address(pool, number),
				 (char *)qms_arena_base(arena) + number * 1024);
	}
	assert_int_equal(qms_pool_free_slots(pool), 0);
	assert_int_equal(qms_pool_take(pool, &number), QMLA_ERR_RESOURCE_EXHAUSTED);
	qms_pool_give(pool, 5);
	assert_int_equal(qms_pool_free_slots(pool), 1);
	assert_int_equal(qms_pool_take(pool, &number), QMLA_OK);
	assert_int_equal(number, 5);
	qms_pool_destroy(pool);
	qms_arena_destroy(arena);
}

static void generation_rises_at_every_reuse(void **state)
{
	struct qms_arena *arena = arena_of(4096);
	struct qms_pool *pool, *other;
	uint64_t before = 0;
	uint32_t number;

	(void)state;
	assert_int_equal(qms_pool_create(arena, 4096, &pool), QMLA_OK);
	for (int i = 0; i < 100; i++) {
		uint64_t now;

		assert_int_equal(qms_pool_take(pool, &number), QMLA_OK);
		now = atomic_load(&qms_pool_slot(pool, number)->generation);
		assert_true(now > before);
		before = now;
		if (i % 2) {
			qms_pool_retake(pool, number);
			assert_int_equal(atomic_load(&qms_pool_slot(pool, number)->generation),
					 before + 1);
			before++;
		}
		qms_pool_give(pool, number);
	}
	/* Another life of the memory starts elsewhere: old descriptors do not fit. */
	assert_int_equal(qms_pool_create(arena, 4096, &other), QMLA_OK);
	assert_int_equal(qms_pool_take(other, &number), QMLA_OK);
	assert_int_not_equal(atomic_load(&qms_pool_slot(other, number)->generation), before);
	qms_pool_destroy(other);
	qms_pool_destroy(pool);
	qms_arena_destroy(arena);
}

static void locate_knows_one_slot_only(void **state)
{
	struct qms_arena *arena = arena_of(4096);
	struct qms_pool *pool;
	uint32_t number = 99;

	(void)state;
	assert_int_equal(qms_pool_create(arena, 1000, &pool),
			 QMLA_OK); /* 4 slots, 96 bytes left over */
	assert_int_equal(qms_pool_locate(pool, 1000, 1000, &number), QMLA_OK);
	assert_int_equal(number, 1);
	assert_int_equal(qms_pool_locate(pool, 3999, 1, &number), QMLA_OK);
	assert_int_equal(number, 3);
	number = 99;
	assert_int_equal(qms_pool_locate(pool, 999, 2, &number), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qms_pool_locate(pool, 0, 1001, &number), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qms_pool_locate(pool, 0, 0, &number), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qms_pool_locate(pool, 4000, 1, &number), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qms_pool_locate(pool, 0, UINT64_MAX, &number), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qms_pool_locate(pool, UINT64_MAX, UINT64_MAX, &number),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qms_pool_locate(pool, UINT64_MAX - 10, 11, &number),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(number, 99);
	qms_pool_destroy(pool);
	qms_arena_destroy(arena);
}

static void too_small_an_arena_is_named(void **state)
{
	struct qms_arena *arena = arena_of(4096);
	struct qms_pool *pool;

	(void)state;
	assert_int_equal(qms_pool_create(arena, 4097, &pool), QMLA_ERR_TOO_LARGE);
	assert_int_equal(qms_pool_create(arena, 0, &pool), QMLA_ERR_INVALID_ARGUMENT);
	qms_arena_destroy(arena);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arena_is_writable_here_and_nowhere_else),
		cmocka_unit_test(prefault_takes_the_memory),
		cmocka_unit_test(impossible_arenas_are_refused),
		cmocka_unit_test(slots_are_equal_and_apart),
		cmocka_unit_test(generation_rises_at_every_reuse),
		cmocka_unit_test(locate_knows_one_slot_only),
		cmocka_unit_test(too_small_an_arena_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
