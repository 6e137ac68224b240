/* SPDX-License-Identifier: Apache-2.0 */
/** @file Version of the node, from the build. */
#ifndef QMS_VERSION_H
#define QMS_VERSION_H

#ifndef QMS_VERSION
#error "QMS_VERSION comes from server/CMakeLists.txt"
#endif

#endif /* QMS_VERSION_H */
