// The calls of operators: tokens (make, list, rotate, revoke) and the audit log. Secrets are made
// here and shown once, in the reply; the store gets their hash.
#pragma once

#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"
#include "server/store/access_store.h"
#include "server/store/audit/audit_log.h"

namespace nsa::server {

// What the audit log says the request is about: "ada", "ada with Unix user ada".
std::string WhoseToken(const v1::CreateTokenRequest& request);

absl::StatusOr<v1::CreateTokenResponse> CreateToken(AccessStore& access,
                                                    const v1::CreateTokenRequest& request);
absl::StatusOr<v1::ListTokensResponse> ListTokens(const AccessStore& access,
                                                  const v1::ListTokensRequest& request);
absl::StatusOr<v1::RotateTokenResponse> RotateToken(AccessStore& access,
                                                    const v1::RotateTokenRequest& request);
absl::StatusOr<v1::RevokeTokenResponse> RevokeToken(AccessStore& access,
                                                    const v1::RevokeTokenRequest& request);

absl::StatusOr<v1::ListAuditResponse> ListAudit(const AuditLog& audit,
                                                const v1::ListAuditRequest& request);

}  // namespace nsa::server
