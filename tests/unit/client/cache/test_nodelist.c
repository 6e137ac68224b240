/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/cache/nodelist.h"

static void test_reads_every_form(void **state)
{
	struct qml_nodespec *nodes;
	size_t count;

	(void)state;
	assert_int_equal(qml_nodelist_parse("a.example:7000, [fd00::1]:7001*2.5,"
					    "east=10.0.0.1:7002*0.5,",
					    &nodes, &count),
			 QMLA_OK);
	assert_int_equal(count, 3);
	assert_string_equal(nodes[0].name, "a.example:7000");
	assert_string_equal(nodes[0].target, "a.example:7000");
	assert_true(nodes[0].weight > 0.999 && nodes[0].weight < 1.001);
	assert_string_equal(nodes[1].name, "[fd00::1]:7001");
	assert_string_equal(nodes[1].target, "[fd00::1]:7001");
	assert_true(nodes[1].weight > 2.499 && nodes[1].weight < 2.501);
	assert_string_equal(nodes[2].name, "east");
	assert_string_equal(nodes[2].target, "10.0.0.1:7002");
	free(nodes);
}

static void test_refuses(void **state)
{
	static const char *const bad[] = {
		"",
		" , ",
		"host",
		"7000",
		"host:0",
		"host:70000",
		"host:7000*0",
		"host:7000*-1",
		"host:7000*nan",
		"host:7000*inf",
		"host:7000*2x",
		"=host:7000",
		"a=",
		"fd00::1:7000",
		"h:1,h:1",
		"x=h:1,x=h:2",
		"host:7000*",
		":7000",
	};
	struct qml_nodespec *nodes = (struct qml_nodespec *)&bad;
	size_t count = 99;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		print_message("%s\n", bad[i]);
		assert_int_equal(qml_nodelist_parse(bad[i], &nodes, &count),
				 QMLA_ERR_INVALID_ARGUMENT);
	}
	assert_int_equal(count, 99);
}

static void test_limits(void **state)
{
	struct qml_nodespec *nodes;
	size_t count, size = 0;
	char *text = malloc(QML_NODES_MAX * 16 + 2000);

	(void)state;
	assert_non_null(text);
	for (unsigned i = 1; i <= QML_NODES_MAX; i++)
		size += (size_t)sprintf(text + size, "h:%u,", i);
	assert_int_equal(qml_nodelist_parse(text, &nodes, &count), QMLA_OK);
	assert_int_equal(count, QML_NODES_MAX);
	free(nodes);
	strcpy(text + size, "h:999");
	assert_int_equal(qml_nodelist_parse(text, &nodes, &count), QMLA_ERR_INVALID_ARGUMENT);
	memset(text, 'a', 1500);
	strcpy(text + 1500, ":7000");
	assert_int_equal(qml_nodelist_parse(text, &nodes, &count), QMLA_ERR_INVALID_ARGUMENT);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reads_every_form),
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
