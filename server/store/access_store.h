// Who may call: tokens of people, join tokens, and the secrets of the nodes that have joined. The
// file is <state_dir>/access (mode 0600, replaced atomically, with a checksum). It holds hashes
// only: a secret cannot be recovered from it. Callers hash; this file knows no cryptography.
// Thread-safe. Reads never wait for the disk: gRPC's own threads (two on a small machine)
// look every caller up, and while they wait nobody can connect.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

class AccessStore {
 public:
  // Empty when there is no file. DataLoss when it is damaged; the error names it and the remedy.
  static absl::StatusOr<std::unique_ptr<AccessStore>> Open(const std::filesystem::path& state_dir,
                                                           const Clock& clock);

  // The token with this hash that is valid now; a join token is none. Unauthenticated for a token
  // that has expired; null when there is none.
  absl::StatusOr<std::optional<v1::AccessToken>> Find(const std::string& secret_sha256) const;

  // Whether a node has a secret of its own.
  bool HasJoined(const std::string& node) const;

  struct Joining {
    std::string node;
    std::string secret_sha256;
    std::string join_token_sha256;  // empty: none was sent
    std::string certificate_name;
    // The caller needs no join token: it came over the unix socket, and no agent with this name
    // sends heartbeats.
    bool trusted = false;
  };
  // Makes a secret that of a node and takes the join token away. OK again when it is that already.
  // Unauthenticated without a join token for this node, unless `trusted`.
  absl::Status Join(const Joining& joining);

  // Adds a token. `token` without id and times; `valid` zero: for ever. InvalidArgument,
  // AlreadyExists for the name of another person's token, ResourceExhausted for too many. A second
  // join token of a node takes the place of the first.
  absl::StatusOr<v1::AccessToken> Create(v1::AccessToken token, absl::Duration valid,
                                         const std::string& secret_sha256);

  // Gives the token of a person another secret. By id or name. NotFound.
  absl::StatusOr<v1::AccessToken> Rotate(const std::string& id_or_name,
                                         const std::string& secret_sha256);

  // Removes a token or a node's secret. By id, name, or the node that has joined. NotFound.
  absl::StatusOr<v1::AccessToken> Revoke(const std::string& id_or_name);

  // At most `limit` tokens with an id after `after`, by id.
  std::vector<v1::AccessToken> List(const std::string& after, size_t limit) const;

 private:
  using ById = std::map<std::string, v1::StoredToken>;

  AccessStore(std::filesystem::path file, const Clock& clock)
      : file_(std::move(file)), clock_(clock) {}
  bool Expired(const v1::AccessToken& token) const;
  absl::StatusOr<ById::const_iterator> Named(const std::string& id_or_name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckJoin(const Joining& joining) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes `tokens` to the disk and then takes them. Releases mutex_ meanwhile: writing_ keeps the
  // members as they are.
  absl::Status Replace(ById tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_, mutex_);
  void Index() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::filesystem::path file_;
  const Clock& clock_;
  Mutex writing_ ABSL_ACQUIRED_BEFORE(mutex_);  // held while the members or the file change
  mutable Mutex mutex_;
  ById tokens_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> by_hash_ ABSL_GUARDED_BY(mutex_);  // hash → id
  std::map<std::string, std::string> nodes_ ABSL_GUARDED_BY(mutex_);    // joined node → id
};

}  // namespace nsa::server
