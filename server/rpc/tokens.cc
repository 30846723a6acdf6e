#include "server/rpc/tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/rpc/secret.h"

namespace nsa::server {
namespace {

constexpr int64_t kLongestSeconds = int64_t{10} * 366 * 24 * 3'600;
constexpr int kLargestPage = 1'000;
constexpr absl::Duration kJoinTokenLives = absl::Hours(1);

}  // namespace

std::string WhoseToken(const v1::CreateTokenRequest& request) {
  const std::string whose = request.name() + request.node();
  if (request.unix_user().empty()) return whose;
  return absl::StrCat(whose, " with Unix user ", request.unix_user());
}

absl::StatusOr<v1::CreateTokenResponse> CreateToken(AccessStore& access,
                                                    const v1::CreateTokenRequest& request) {
  if (request.valid_seconds() < 0 || request.valid_seconds() > kLongestSeconds) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "valid_seconds: %d (from 0 to %d); choose less", request.valid_seconds(), kLongestSeconds));
  }
  absl::Duration valid = absl::Seconds(request.valid_seconds());
  const bool agent = request.role() == v1::ROLE_AGENT;
  if (agent && valid == absl::ZeroDuration()) valid = kJoinTokenLives;
  v1::AccessToken token;
  token.set_name(request.name());
  token.set_role(request.role());
  token.set_node(request.node());
  token.set_unix_user(request.unix_user());
  v1::CreateTokenResponse response;
  NSA_ASSIGN_OR_RETURN(*response.mutable_secret(), NewSecret());
  NSA_ASSIGN_OR_RETURN(*response.mutable_token(),
                       access.Create(std::move(token), valid, Sha256(response.secret())));
  return response;
}

absl::StatusOr<v1::ListTokensResponse> ListTokens(const AccessStore& access,
                                                  const v1::ListTokensRequest& request) {
  if (request.page_size() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size: ", request.page_size(), " (at least 0); use 0 for the default"));
  }
  const int size =
      request.page_size() == 0 ? kLargestPage : std::min(request.page_size(), kLargestPage);
  const auto limit = static_cast<size_t>(size);
  std::vector<v1::AccessToken> tokens = access.List(request.page_token(), limit + 1);
  v1::ListTokensResponse response;
  if (tokens.size() > limit) {
    tokens.pop_back();
    response.set_next_page_token(tokens.back().id());
  }
  response.mutable_tokens()->Assign(tokens.begin(), tokens.end());
  return response;
}

absl::StatusOr<v1::RotateTokenResponse> RotateToken(AccessStore& access,
                                                    const v1::RotateTokenRequest& request) {
  v1::RotateTokenResponse response;
  NSA_ASSIGN_OR_RETURN(*response.mutable_secret(), NewSecret());
  NSA_ASSIGN_OR_RETURN(*response.mutable_token(),
                       access.Rotate(request.token(), Sha256(response.secret())));
  return response;
}

absl::StatusOr<v1::RevokeTokenResponse> RevokeToken(AccessStore& access,
                                                    const v1::RevokeTokenRequest& request) {
  v1::RevokeTokenResponse response;
  NSA_ASSIGN_OR_RETURN(*response.mutable_token(), access.Revoke(request.token()));
  return response;
}

absl::StatusOr<v1::ListAuditResponse> ListAudit(const AuditLog& audit,
                                                const v1::ListAuditRequest& request) {
  if (request.page_size() < 0 || request.after_sequence() < 0 || request.tail() < 0) {
    return absl::InvalidArgumentError(
        "page_size, after_sequence, tail: negative (at least 0); use 0 for the default");
  }
  const int size =
      request.page_size() == 0 ? kLargestPage : std::min(request.page_size(), kLargestPage);
  int64_t after = request.after_sequence();
  if (after == 0 && request.tail() > 0) {
    after = std::max<int64_t>(0, audit.last_sequence() - request.tail());
  }
  NSA_ASSIGN_OR_RETURN(const std::vector<v1::AuditEntry> entries,
                       audit.Read(after, static_cast<size_t>(size)));
  v1::ListAuditResponse response;
  response.mutable_entries()->Assign(entries.begin(), entries.end());
  return response;
}

}  // namespace nsa::server
