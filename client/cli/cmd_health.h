/* SPDX-License-Identifier: Apache-2.0 */
/** @file qmla health: asks processes whether they serve (grpc.health.v1). */
#ifndef QMW_CMD_HEALTH_H
#define QMW_CMD_HEALTH_H

/** Runs the command; argv[0] is its name. Returns the process's exit status. */
int qmw_cmd_health(int argc, char **argv);

#endif /* QMW_CMD_HEALTH_H */
