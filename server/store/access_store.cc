#include "server/store/access_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/utc_text.h"
#include "common/run/atomic_file.h"
#include "common/run/unix_user.h"
#include "server/store/random_id.h"
#include "server/store/sealed.h"

namespace nsa::server {
namespace {

constexpr char kAccessFile[] = "access";

absl::Status Damaged(const std::filesystem::path& path, const std::string& why) {
  return absl::DataLossError(absl::StrCat(
      "access: ", path.string(), " is damaged (", why,
      "); put a copy back, or move it away: tokens are then made anew, and agents on other "
      "machines join again with new join tokens"));
}

absl::StatusOr<v1::StoredAccess> ReadFile(const std::filesystem::path& path) {
  v1::StoredAccess access;
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return access;
  if (info.st_size > limits::kAccessFileBytes) {
    return Damaged(path, absl::StrCat(info.st_size, " bytes, ", limits::kAccessFileBytes));
  }
  const auto bytes = ReadWholeFile(path);
  if (!bytes.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("access: ", bytes.status().message(), "; check who owns it"));
  }
  if (const absl::Status status = Unseal(*bytes, &access); !status.ok()) {
    return Damaged(path, std::string(status.message()));
  }
  return access;
}

absl::Status CheckUnixUser(const v1::AccessToken& token) {
  if (token.unix_user().empty()) return absl::OkStatus();
  if (token.role() != v1::ROLE_SUBMITTER && token.role() != v1::ROLE_OPERATOR) {
    return absl::InvalidArgumentError(
        "unix_user: set for a token that submits no jobs; leave it out, or choose the role "
        "submitter or operator");
  }
  if (IsUnixUser(token.unix_user())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("unix_user: '", absl::CHexEscape(token.unix_user().substr(0, 80)),
                   "' (1 to 32 of a-z, 0-9, _ and -, beginning with a letter or _, and never "
                   "root); give the name of the user that shall run the jobs"));
}

absl::Status CheckToken(const v1::AccessToken& token) {
  const bool agent = token.role() == v1::ROLE_AGENT;
  if (token.role() == v1::ROLE_UNSPECIFIED || !v1::Role_IsValid(token.role())) {
    return absl::InvalidArgumentError("role: not set; choose viewer, submitter, operator or agent");
  }
  NSA_RETURN_IF_ERROR(CheckUnixUser(token));
  if (agent && !token.name().empty()) {
    return absl::InvalidArgumentError("name: set for an agent; give the node instead");
  }
  if (agent && !limits::IsPlainName(token.node(), limits::kNodeNameBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("node: not a name (1 to ", limits::kNodeNameBytes,
                     " letters, digits and -_.); give the node_name of the agent"));
  }
  if (agent) return absl::OkStatus();
  if (!token.node().empty()) {
    return absl::InvalidArgumentError("node: set for a person; only role agent has one");
  }
  if (!limits::IsPlainName(token.name(), limits::kTokenNameBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("name: not a name (1 to ", limits::kTokenNameBytes,
                     " letters, digits and -_.); give the person's user name"));
  }
  if (token.name() == "local" || token.name() == "operator") {
    return absl::InvalidArgumentError(
        absl::StrCat("name: ", token.name(),
                     " is taken (callers over the unix socket, and with "
                     "the file token_file); choose another"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AccessStore>> AccessStore::Open(
    const std::filesystem::path& state_dir, const Clock& clock) {
  const std::filesystem::path path = state_dir / kAccessFile;
  NSA_ASSIGN_OR_RETURN(v1::StoredAccess access, ReadFile(path));
  std::unique_ptr<AccessStore> store(new AccessStore(path, clock));
  MutexLock lock(&store->mutex_);
  for (v1::StoredToken& token : *access.mutable_tokens()) {
    const std::string id = token.token().id();
    store->tokens_[id] = std::move(token);
  }
  store->Index();
  return store;
}

void AccessStore::Index() {
  by_hash_.clear();
  nodes_.clear();
  for (const auto& [id, stored] : tokens_) {
    by_hash_[stored.secret_sha256()] = id;
    if (stored.token().joined()) nodes_[stored.token().node()] = id;
  }
}

bool AccessStore::Expired(const v1::AccessToken& token) const {
  return token.expire_unix_nanos() != 0 &&
         absl::ToUnixNanos(clock_.Wall()) >= token.expire_unix_nanos();
}

absl::StatusOr<std::optional<v1::AccessToken>> AccessStore::Find(
    const std::string& secret_sha256) const {
  MutexLock lock(&mutex_);
  const auto found = by_hash_.find(secret_sha256);
  if (found == by_hash_.end()) return std::nullopt;
  const v1::AccessToken& token = tokens_.at(found->second).token();
  if (token.role() == v1::ROLE_AGENT && !token.joined()) return std::nullopt;
  if (Expired(token)) {
    return absl::UnauthenticatedError(
        absl::StrCat("authorization: the token ", token.id(), " expired at ",
                     UtcText(token.expire_unix_nanos()), "; ask for a new one"));
  }
  return token;
}

bool AccessStore::HasJoined(const std::string& node) const {
  MutexLock lock(&mutex_);
  return nodes_.contains(node);
}

absl::Status AccessStore::Replace(ById tokens) {
  v1::StoredAccess access;
  for (const auto& [id, token] : tokens) *access.add_tokens() = token;
  mutex_.Unlock();
  const absl::Status written = WriteFileAtomically(file_, Seal(access));
  mutex_.Lock();
  NSA_RETURN_IF_ERROR(written);
  tokens_ = std::move(tokens);
  Index();
  return absl::OkStatus();
}

// Whether this join may go on: with a join token for this node, or without one if it is trusted.
absl::Status AccessStore::CheckJoin(const Joining& joining) const {
  if (joining.join_token_sha256.empty()) {
    if (joining.trusted) return absl::OkStatus();
    return absl::UnauthenticatedError(absl::StrCat(
        "join_token: none for node ", joining.node,
        " (needed, unless it joins over the coordinator's unix socket); make one with `nsactl "
        "token create --role agent --node ",
        joining.node, "` and set join_token_file to its file"));
  }
  const auto found = by_hash_.find(joining.join_token_sha256);
  const v1::AccessToken* token =
      found == by_hash_.end() ? nullptr : &tokens_.at(found->second).token();
  const bool good = token != nullptr && token->role() == v1::ROLE_AGENT && !token->joined() &&
                    token->node() == joining.node && !Expired(*token);
  if (good || (joining.trusted && token == nullptr)) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat(
      "join_token: not valid for node ", joining.node,
      " (it was used, has expired or is another node's); make one with `nsactl token create "
      "--role agent --node ",
      joining.node, "`"));
}

absl::Status AccessStore::Join(const Joining& joining) {
  MutexLock writing(&writing_);
  MutexLock lock(&mutex_);
  const auto known = nodes_.find(joining.node);
  if (known != nodes_.end() && tokens_.at(known->second).secret_sha256() == joining.secret_sha256) {
    return absl::OkStatus();  // Sent again; to speak, the sender still needs the secret.
  }
  NSA_RETURN_IF_ERROR(CheckJoin(joining));
  ById tokens = tokens_;
  if (const auto spent = by_hash_.find(joining.join_token_sha256); spent != by_hash_.end()) {
    tokens.erase(spent->second);
  }
  if (known != nodes_.end()) tokens.erase(known->second);
  if (tokens.size() >= limits::kTokens || by_hash_.contains(joining.secret_sha256)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("tokens: ", tokens.size(), " (at most ", limits::kTokens,
                     "); revoke those that are not needed: nsactl token list"));
  }
  const std::string id = RandomId("t");
  v1::StoredToken& stored = tokens[id];
  stored.mutable_token()->set_id(id);
  stored.mutable_token()->set_role(v1::ROLE_AGENT);
  stored.mutable_token()->set_node(joining.node);
  stored.mutable_token()->set_joined(true);
  stored.mutable_token()->set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
  stored.mutable_token()->set_certificate_name(joining.certificate_name);
  stored.set_secret_sha256(joining.secret_sha256);
  stored.set_join_token_sha256(joining.join_token_sha256);
  return Replace(std::move(tokens));
}

absl::StatusOr<v1::AccessToken> AccessStore::Create(v1::AccessToken token, absl::Duration valid,
                                                    const std::string& secret_sha256) {
  NSA_RETURN_IF_ERROR(CheckToken(token));
  MutexLock writing(&writing_);
  MutexLock lock(&mutex_);
  ById tokens = tokens_;
  const bool agent = token.role() == v1::ROLE_AGENT;
  if (agent) {
    std::erase_if(tokens, [&](const auto& entry) {
      const v1::AccessToken& other = entry.second.token();
      return other.node() == token.node() && !other.joined();
    });
  } else if (Named(token.name()).ok()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "name: ", token.name(), " has a token; rotate or revoke it, or choose another name"));
  }
  if (tokens.size() >= limits::kTokens) {
    return absl::ResourceExhaustedError(
        absl::StrCat("tokens: ", tokens.size(), " (at most ", limits::kTokens,
                     "); revoke those that are not needed: nsactl token list"));
  }
  const absl::Time now = clock_.Wall();
  token.set_id(RandomId("t"));
  token.set_joined(false);
  token.clear_certificate_name();
  token.set_create_unix_nanos(absl::ToUnixNanos(now));
  token.set_expire_unix_nanos(valid == absl::ZeroDuration() ? 0 : absl::ToUnixNanos(now + valid));
  v1::StoredToken& stored = tokens[token.id()];
  *stored.mutable_token() = token;
  stored.set_secret_sha256(secret_sha256);
  NSA_RETURN_IF_ERROR(Replace(std::move(tokens)));
  return token;
}

absl::StatusOr<AccessStore::ById::const_iterator> AccessStore::Named(
    const std::string& id_or_name) const {
  auto found = tokens_.find(id_or_name);
  if (found == tokens_.end() && !id_or_name.empty()) {
    found = std::ranges::find_if(tokens_, [&](const auto& entry) {
      const v1::AccessToken& token = entry.second.token();
      return token.name() == id_or_name || (token.joined() && token.node() == id_or_name);
    });
  }
  if (found != tokens_.end()) return found;
  return absl::NotFoundError(absl::StrCat("token: none has the id or name '",
                                          CutText(id_or_name, 80),
                                          "'; `nsactl token list` shows them"));
}

absl::StatusOr<v1::AccessToken> AccessStore::Rotate(const std::string& id_or_name,
                                                    const std::string& secret_sha256) {
  MutexLock writing(&writing_);
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const auto found, Named(id_or_name));
  if (found->second.token().role() == v1::ROLE_AGENT) {
    return absl::FailedPreconditionError(absl::StrCat(
        "token: ", found->first, " is of node ", found->second.token().node(),
        ", which makes its secret itself; make a join token with `nsactl token create --role "
        "agent --node ",
        found->second.token().node(), "`"));
  }
  ById tokens = tokens_;
  v1::StoredToken& stored = tokens[found->first];
  stored.set_secret_sha256(secret_sha256);
  v1::AccessToken token = stored.token();
  NSA_RETURN_IF_ERROR(Replace(std::move(tokens)));
  return token;
}

absl::StatusOr<v1::AccessToken> AccessStore::Revoke(const std::string& id_or_name) {
  MutexLock writing(&writing_);
  MutexLock lock(&mutex_);
  NSA_ASSIGN_OR_RETURN(const auto found, Named(id_or_name));
  v1::AccessToken token = found->second.token();
  ById tokens = tokens_;
  tokens.erase(token.id());
  NSA_RETURN_IF_ERROR(Replace(std::move(tokens)));
  return token;
}

std::vector<v1::AccessToken> AccessStore::List(const std::string& after, size_t limit) const {
  MutexLock lock(&mutex_);
  std::vector<v1::AccessToken> list;
  for (auto entry = tokens_.upper_bound(after); entry != tokens_.end() && list.size() < limit;
       ++entry) {
    list.push_back(entry->second.token());
  }
  return list;
}

}  // namespace nsa::server
