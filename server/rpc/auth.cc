#include "server/rpc/auth.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/secret.h"
#include "server/rpc/gate/callers.h"

namespace nsa::server {
namespace {

constexpr std::string_view kScheme = "Bearer ";
constexpr size_t kLongestToken = 4 << 10;

absl::Status Refuse(std::string_view problem, bool agent) {
  return absl::UnauthenticatedError(absl::StrCat(
      "authorization: ", std::string(problem),
      agent ? "; an agent must join first: see join_token_file"
            : "; set token_file or NSACTL_TOKEN_FILE to the file of a token that is valid"));
}

Caller CallerOf(const v1::AccessToken& token) {
  Caller caller;
  caller.role = token.role();
  caller.node = token.node();
  caller.unix_user = token.unix_user();
  caller.name = token.role() == v1::ROLE_AGENT ? absl::StrCat("node ", token.node()) : token.name();
  return caller;
}

bool IsOfAgents(std::string_view method) {
  return method == "Heartbeat" || method == "ReportRecords" || method == "ReportLog" ||
         method == "ReportDump" || method == "ReportProfile";
}

}  // namespace

absl::StatusOr<Caller> Auth::Check(const grpc::CallbackServerContext& context,
                                   std::string_view method) const {
  const std::string peer = context.peer();
  Sender sender{.peer = OriginOf(peer)};
  const auto& metadata = context.client_metadata();
  if (const auto header = metadata.find("authorization"); header != metadata.end()) {
    sender.header.assign(header->second.data(), header->second.size());
  }
  const std::shared_ptr<GateCaller> connection = FindGateCaller(peer);
  if (connection != nullptr) sender.certificate_name = connection->certificate_name;
  absl::StatusOr<Caller> caller = Check(sender, method);
  // Join needs no token.
  if (caller.ok() && connection != nullptr && method != "Join") connection->known = true;
  return caller;
}

absl::StatusOr<Caller> Auth::Check(const Sender& sender, std::string_view method) const {
  Caller caller;
  if (method == "Join") {
    caller.local = IsLocal(sender.peer);
  } else {
    NSA_ASSIGN_OR_RETURN(caller, Identify(sender, IsOfAgents(method)));
  }
  caller.from = sender.peer;
  caller.certificate_name = sender.certificate_name;
  NSA_RETURN_IF_ERROR(MayCall(caller, method));
  return caller;
}

absl::StatusOr<Caller> Auth::Identify(const Sender& sender, bool to_agents) const {
  const bool local = IsLocal(sender.peer);
  const Caller owner{.name = "local", .role = v1::ROLE_OPERATOR, .local = true};
  std::string_view token = sender.header;
  if (!token.starts_with(kScheme) || token.size() == kScheme.size()) {
    if (local) return owner;
    return Refuse("no bearer token (TCP needs one)", to_agents);
  }
  token.remove_prefix(kScheme.size());
  if (token.size() > kLongestToken) return Refuse("the token is too long", to_agents);
  // Hashes are compared and looked up: the time that takes says nothing about the secret.
  const std::string hash = Sha256(token);
  if (hash == file_hash_) return Caller{.name = "operator", .role = v1::ROLE_OPERATOR};
  if (access_ != nullptr) {
    NSA_ASSIGN_OR_RETURN(const std::optional<v1::AccessToken> known, access_->Find(hash));
    const bool bound = known.has_value() && !known->certificate_name().empty();
    if (bound && known->certificate_name() != sender.certificate_name) {
      return Refuse(
          absl::StrCat("node ", known->node(), " joined with the certificate ",
                       known->certificate_name(), " and now has '", sender.certificate_name, "'"),
          true);
    }
    if (known.has_value()) return CallerOf(*known);
  }
  // An agent that has not joined yet, or whose node the store does not know.
  if (local && to_agents) return owner;
  return Refuse("wrong token", to_agents);
}

}  // namespace nsa::server
