# The node as a process: node_*.c. They call it through the fixture of the node's unit tests.
add_library(node_process STATIC node_process.c)
target_compile_definitions(node_process PRIVATE QMLA_BINARY_DIR="${PROJECT_BINARY_DIR}")
target_link_libraries(node_process PUBLIC qmc)
foreach(name IN ITEMS life abuse)
	qmla_test(NAME integration/node_${name} SOURCES node_${name}.c
		LIBRARIES node_process qms_test_node LABELS integration TIMEOUT 120)
	add_dependencies(integration_node_${name} qmla-node)
endforeach()
