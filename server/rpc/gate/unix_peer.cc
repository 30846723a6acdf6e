#include "server/rpc/gate/unix_peer.h"

#include <pwd.h>
#include <sys/socket.h>

#include <cerrno>
#include <fstream>
#include <future>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/thread_name.h"

namespace nsa::server {
namespace {

constexpr char kUnixOrigin[] = "unix:";
constexpr size_t kUnixOriginSize = sizeof kUnixOrigin - 1;
constexpr std::string_view kSigns = "-._@$\\";
constexpr uid_t kNobodyLoggedIn = static_cast<uid_t>(-1);
constexpr absl::Duration kKept = absl::Minutes(1);
constexpr size_t kMostKept = 1'024;

bool IsName(const std::string& text) {
  bool digits = true;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (!absl::ascii_isalnum(byte) && kSigns.find(c) == kSigns.npos) return false;
    digits = digits && absl::ascii_isdigit(byte);
  }
  return !digits;
}

}  // namespace

UnixPeer PeerOf(int fd) {
  ucred from{.pid = 0, .uid = kNobodyLoggedIn, .gid = 0};
  socklen_t size = sizeof from;
  getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &from, &size);
  UnixPeer peer{.pid = from.pid, .uid = from.uid, .login = std::nullopt};
  uid_t login = kNobodyLoggedIn;
  std::ifstream file(absl::StrCat("/proc/", peer.pid, "/loginuid"));
  if (file >> login && login != kNobodyLoggedIn && login != peer.uid) peer.login = login;
  return peer;
}

std::string OriginOf(const UnixPeer& peer) {
  return peer.login.has_value() ? absl::StrCat(kUnixOrigin, peer.uid, "-", *peer.login)
                                : absl::StrCat(kUnixOrigin, peer.uid);
}

std::string NameOfUser(uid_t uid) {
  std::vector<char> buffer(4'096);
  passwd entry{};
  passwd* found = nullptr;
  while (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == ERANGE) {
    buffer.resize(2 * buffer.size());
  }
  const std::string name = found == nullptr ? "" : found->pw_name;
  return IsName(name) ? name : "";
}

std::string UnixNames::Shown(const std::string& origin) {
  if (!origin.starts_with(kUnixOrigin)) return origin;
  const std::string users = origin.substr(kUnixOriginSize);
  const size_t dash = users.find('-');
  uid_t uid = 0;
  uid_t login = 0;
  if (!absl::SimpleAtoi(users.substr(0, dash), &uid)) return origin;
  if (dash == std::string::npos) return absl::StrCat(kUnixOrigin, NameOf(uid));
  if (!absl::SimpleAtoi(users.substr(dash + 1), &login)) return origin;
  return absl::StrCat(kUnixOrigin, NameOf(uid), " (login ", NameOf(login), ")");
}

std::string UnixNames::NameOf(uid_t uid) {
  const absl::Duration now = clock_.Monotonic();
  {
    const MutexLock lock(&mutex_);
    const auto at = known_.find(uid);
    if (at != known_.end() && now < at->second.until) return at->second.name;
    // Others use the old name meanwhile.
    if (at != known_.end()) at->second.until = now + kKept;
  }
  const std::string name = LookUp(uid);
  const MutexLock lock(&mutex_);
  if (known_.size() >= kMostKept) known_.clear();
  known_[uid] = {.name = name, .until = now + kKept};
  return name;
}

std::string UnixNames::LookUp(uid_t uid) const {
  // Nothing ends a lookup whose directory does not answer.
  const auto found = std::make_shared<std::promise<std::string>>();
  std::future<std::string> name = found->get_future();
  std::thread([found, uid, lookup = lookup_] {
    NameThread("user-name");
    found->set_value(lookup(uid));
  }).detach();
  const bool came =
      name.wait_for(absl::ToChronoNanoseconds(kPatience)) == std::future_status::ready;
  const std::string text = came ? name.get() : "";
  return text.empty() ? absl::StrCat(uid) : text;
}

}  // namespace nsa::server
