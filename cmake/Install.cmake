# What `cmake --install` puts where, beside the programs (each folder installs its own).
include(CMakePackageConfigHelpers)

if(NOT TARGET qmla)
	return()
endif()
set(QMLA_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/qmla)

install(TARGETS qmla EXPORT qmlaTargets
	LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
	INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/client/include/qmla ${PROJECT_SOURCE_DIR}/common/include/qmla
	DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

install(EXPORT qmlaTargets NAMESPACE qmla:: DESTINATION ${QMLA_PACKAGE_DIR})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/qmlaConfig.cmake.in
	${PROJECT_BINARY_DIR}/cmake/qmlaConfig.cmake INSTALL_DESTINATION ${QMLA_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/qmlaConfigVersion.cmake
	COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/qmlaConfig.cmake
	${PROJECT_BINARY_DIR}/cmake/qmlaConfigVersion.cmake DESTINATION ${QMLA_PACKAGE_DIR})

# Relative to its own place: the tree may be installed with another --prefix.
file(RELATIVE_PATH QMLA_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_CURRENT_LIST_DIR}/qmla.pc.in ${PROJECT_BINARY_DIR}/cmake/qmla.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cmake/qmla.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(EXISTS ${PROJECT_SOURCE_DIR}/LICENSE)
	install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
