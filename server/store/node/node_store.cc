#include "server/store/node/node_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "server/store/sealed.h"

namespace nsa::server {
namespace {

constexpr char kFileName[] = "cordons.pb";
constexpr int64_t kLargestFile = 4 << 20;  // a cordon for each of limits::kNodes

absl::Status Damaged(const std::filesystem::path& file, const std::string& why) {
  return absl::DataLossError(absl::StrCat(
      "cordons: ", file.string(), " is damaged (", why,
      "); put a copy back, or move it away and cordon the machines again (nsactl node cordon)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeStore>> NodeStore::Open(const std::filesystem::path& state_dir) {
  std::unique_ptr<NodeStore> store(new NodeStore(state_dir / kFileName));
  std::error_code error;
  const auto size = std::filesystem::file_size(store->file_, error);
  if (!error && size > kLargestFile) {
    return Damaged(store->file_, absl::StrCat(size, " bytes, at most ", kLargestFile));
  }
  const auto bytes = ReadWholeFile(store->file_);
  if (absl::IsNotFound(bytes.status())) return store;
  if (!bytes.ok()) return Annotate(bytes.status(), "cordons");
  MutexLock lock(&store->mutex_);
  if (const absl::Status status = Unseal(*bytes, &store->cordons_); !status.ok()) {
    return Damaged(store->file_, std::string(status.message()));
  }
  return store;
}

Cordons NodeStore::All() const {
  MutexLock lock(&mutex_);
  return {cordons_.nodes().begin(), cordons_.nodes().end()};
}

absl::Status NodeStore::Put(const std::string& node, const v1::NodeCordon& cordon) {
  MutexLock lock(&mutex_);
  v1::StoredCordons next = cordons_;
  (*next.mutable_nodes())[node] = cordon;
  if (static_cast<size_t>(next.nodes_size()) > limits::kNodes) {
    return absl::ResourceExhaustedError(absl::StrCat("node: ", cordons_.nodes_size(),
                                                     " machines are cordoned (", limits::kNodes,
                                                     "); uncordon those that are gone"));
  }
  return Replace(std::move(next));
}

absl::Status NodeStore::Remove(const std::string& node) {
  MutexLock lock(&mutex_);
  if (!cordons_.nodes().contains(node)) return absl::OkStatus();
  v1::StoredCordons next = cordons_;
  next.mutable_nodes()->erase(node);
  return Replace(std::move(next));
}

absl::Status NodeStore::Replace(v1::StoredCordons cordons) {
  NSA_RETURN_IF_ERROR(WriteFileAtomically(file_, Seal(cordons)));
  cordons_ = std::move(cordons);
  return absl::OkStatus();
}

}  // namespace nsa::server
