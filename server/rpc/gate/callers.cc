#include "server/rpc/gate/callers.h"

#include <cstdint>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"

namespace nsa::server {
namespace {

constexpr std::string_view kAbstract = "unix-abstract:";
constexpr std::string_view kLocal = "unix:";

// Of this process: other processes may have such names, too.
const std::string& Prefix() {
  static const std::string* const kPrefix = [] {
    std::random_device random;
    const uint64_t number = uint64_t{random()} << 32 | random();
    return new std::string(absl::StrCat("nsa-gate-", absl::Hex(number, absl::kZeroPad16), "-"));
  }();
  return *kPrefix;
}

struct Known {
  Mutex mutex;
  uint64_t next ABSL_GUARDED_BY(mutex) = 0;
  // By the name up to its slash, which gRPC does not escape.
  std::map<std::string, std::shared_ptr<GateCaller>, std::less<>> callers ABSL_GUARDED_BY(mutex);
};

Known& AllKnown() {
  static Known* const known = new Known;
  return *known;
}

std::string NewName(const std::string& address, std::shared_ptr<GateCaller> caller) {
  Known& known = AllKnown();
  const MutexLock lock(&known.mutex);
  const std::string key = absl::StrCat(Prefix(), absl::Hex(known.next++));
  known.callers[key] = std::move(caller);
  return absl::StrCat(key, "/", address);
}

std::string_view KeyOf(std::string_view name) { return name.substr(0, name.find('/')); }

}  // namespace

GateCallerName::GateCallerName(const std::string& address, std::shared_ptr<GateCaller> caller)
    : name_(NewName(address, std::move(caller))) {}

GateCallerName::~GateCallerName() {
  Known& known = AllKnown();
  const MutexLock lock(&known.mutex);
  const auto found = known.callers.find(KeyOf(name_));
  if (found != known.callers.end()) known.callers.erase(found);
}

std::string OriginOf(std::string_view peer) {
  if (!peer.starts_with(kAbstract)) return std::string(peer);
  const std::string_view name = peer.substr(kAbstract.size());
  const size_t slash = name.find('/');
  const bool ours = name.starts_with(Prefix()) && slash != std::string_view::npos;
  return std::string(ours ? name.substr(slash + 1) : peer);
}

std::string OriginOf(const grpc::CallbackServerContext& context) {
  return OriginOf(context.peer());
}

bool IsLocal(std::string_view origin) { return origin.starts_with(kLocal); }

std::shared_ptr<GateCaller> FindGateCaller(std::string_view peer) {
  if (!peer.starts_with(kAbstract)) return nullptr;
  Known& known = AllKnown();
  const MutexLock lock(&known.mutex);
  const auto found = known.callers.find(KeyOf(peer.substr(kAbstract.size())));
  return found == known.callers.end() ? nullptr : found->second;
}

}  // namespace nsa::server
