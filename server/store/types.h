/* SPDX-License-Identifier: Apache-2.0 */
/** @file Small value types shared by the parts of the store. */
#ifndef QMS_TYPES_H
#define QMS_TYPES_H

#include <stdint.h>

#define QMS_KEY_BYTES        16
#define QMS_IDENTITY_BYTES   32
#define QMS_CAPABILITY_BYTES 16
#define QMS_OWNER_MAX        64 /**< of a pin, with the terminating zero */
#define QMS_MAX_IDENTITIES   64
#define QMS_SLOT_NONE        UINT32_MAX

struct qms_key {
	uint8_t bytes[QMS_KEY_BYTES];
};

struct qms_identity {
	uint8_t bytes[QMS_IDENTITY_BYTES];
};

/** Random bytes that a peer must show to touch leased or reserved memory. */
struct qms_capability {
	uint8_t bytes[QMS_CAPABILITY_BYTES];
};

#endif /* QMS_TYPES_H */
