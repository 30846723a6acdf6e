#include "server/setup.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/run/process.h"
#include "server/rpc/listener.h"
#include "server/store/state_lock.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

// The inodes of the sockets that a process has open.
std::set<std::string> SocketsOf(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry, gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// The TCP ports on which a process listens. Empty if it belongs to somebody else.
std::set<std::string> ListeningPortsOf(pid_t pid) {
  constexpr size_t kLocal = 1, kState = 3, kInode = 9;  // columns
  const std::set<std::string> sockets = SocketsOf(pid);
  std::set<std::string> ports;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream lines(absl::StrCat("/proc/", pid, "/net/", table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      const std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
      if (word.size() <= kInode || word[kState] != "0A" || !sockets.contains(word[kInode]))
        continue;
      uint32_t port = 0;
      const std::string& local = word[kLocal];
      if (absl::SimpleHexAtoi(local.substr(local.rfind(':') + 1), &port)) {
        ports.insert(absl::StrCat(port));
      }
    }
  }
  return ports;
}

// Those of the coordinator of a state folder.
std::set<std::string> PortsHeldBy(const fs::path& state_dir) {
  const auto holder = ReadIdentity(state_dir / kStateLockName);
  if (!holder.ok() || !IsAlive(*holder)) return {};
  return ListeningPortsOf(holder->pid);
}

}  // namespace

absl::StatusOr<Setup> ReadSetup(Options options, absl::Time now) {
  NSA_ASSIGN_OR_RETURN(Credentials credentials, ReadCredentials(options, now));
  return Setup{std::move(options), std::move(credentials)};
}

absl::Status CheckAddresses(const Options& options) {
  NSA_RETURN_IF_ERROR(CheckSocketPath(options.unix_socket()));
  const std::set<std::string> held = PortsHeldBy(options.state_dir);
  NSA_RETURN_IF_ERROR(CheckCanListen("listen_address", options.listen_address, held));
  return CheckCanListen("metrics_address", options.metrics_address, held);
}

absl::Status CheckReload(const Options& next, const Options& running) {
  if (next.state_dir != running.state_dir) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state_dir: ", next.state_dir.string(), " (this coordinator runs in ",
        running.state_dir.string(), "); stop it and start it again to use another folder"));
  }
  return CheckAddresses(next);
}

}  // namespace nsa::server
