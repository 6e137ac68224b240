# Language level, warnings and sanitizers of our own code.
option(QMLA_CUDA "Build the CUDA kernels when a CUDA compiler is found" ON)
option(QMLA_VERBS "Build the RDMA transport when infiniband/verbs.h is found" ON)
option(QMLA_NATIVE "Tune for this machine's processor (-march=native)" OFF)
set(QMLA_SANITIZE "" CACHE STRING "Sanitizers: address,undefined | thread | empty")
option(QMLA_FUZZ "Build the libFuzzer targets (needs clang)" OFF)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET default)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
	set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_C_COMPILER_LAUNCHER)
	set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Linked PUBLIC by every library of ours, never by generated code.
add_library(qmla_warnings INTERFACE)
target_compile_definitions(qmla_warnings INTERFACE _GNU_SOURCE)
target_compile_options(qmla_warnings INTERFACE $<$<COMPILE_LANGUAGE:C>:
	-Wall;-Wextra;-Wpedantic;-Wshadow;-Wstrict-prototypes;-Wmissing-prototypes;-Wconversion;-Werror>)
if(QMLA_NATIVE)
	add_compile_options($<$<COMPILE_LANGUAGE:C>:-march=native>)
endif()
if(QMLA_SANITIZE)
	add_compile_options($<$<COMPILE_LANGUAGE:C>:-fsanitize=${QMLA_SANITIZE}>
		$<$<COMPILE_LANGUAGE:C>:-fno-omit-frame-pointer> $<$<COMPILE_LANGUAGE:C>:-fno-sanitize-recover=all>)
	add_link_options(-fsanitize=${QMLA_SANITIZE})
endif()
if(QMLA_FUZZ)
	# Coverage of the libraries too; without it libFuzzer would be blind past its entry point.
	add_compile_options($<$<COMPILE_LANGUAGE:C>:-fsanitize=fuzzer-no-link>)
endif()
