# Every third-party library, as an imported target with SYSTEM headers.
# docs/dependencies.md says why each is here.
find_package(Threads REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(PkgConfig REQUIRED)
pkg_check_modules(INIH REQUIRED IMPORTED_TARGET inih)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
# 1.4.1 fixes CVE-2022-48468 and CVE-2022-33070.
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c>=1.4.1)
find_program(PROTOC_C protoc-c REQUIRED)

# gRPC's own package files pull C++, absl and re2; the C surface is one library.
find_library(GRPC_LIBRARY grpc REQUIRED)
find_library(GPR_LIBRARY gpr REQUIRED)
find_path(GRPC_INCLUDE_DIR grpc/grpc.h REQUIRED)
add_library(grpc_core INTERFACE IMPORTED)
set_target_properties(grpc_core PROPERTIES
	INTERFACE_LINK_LIBRARIES "${GRPC_LIBRARY};${GPR_LIBRARY}"
	INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${GRPC_INCLUDE_DIR}")

# Headers only: the library is loaded at run time, so that one program runs everywhere.
find_path(VERBS_INCLUDE_DIR infiniband/verbs.h)

if(BUILD_TESTING)
	pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
endif()
