// What `nsactl doctor` checks: pure judgements of what was measured, and the measurements.
#pragma once

#include <sys/resource.h>
#include <sys/timex.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls_files.h"
#include "nsa/v1/node.pb.h"

namespace nsa::client {

struct Check {
  enum class Level { kOk, kWarning, kFailed };
  Level level = Level::kOk;
  std::string what;
  std::string value;
  std::string fix;  // what to do; empty when all is well
};

// A machine of the coordinator: heartbeats, driver, forward compatibility, libraries, GPUs. What
// its agent has found by trying the CUDA worker (cuBLASLt) and NCCL is in it.
std::vector<Check> CheckNode(const v1::Node& node, absl::Time now);

// A certificate of this machine, and when it ends.
Check CheckCertificate(const CertificateEnd& end, absl::Time now);

// How many files and connections a process may have open.
Check CheckDescriptors(const rlimit& limit);
// How much memory a process may lock, which NCCL needs between machines.
Check CheckLockedMemory(const rlimit& limit);
// `pattern` is the content of /proc/sys/kernel/core_pattern.
Check CheckCoreDumps(const rlimit& limit, const std::string& pattern);

// `state` is what adjtimex() returned.
Check CheckClock(absl::Time now, const timex& clock, int state);

Check CheckFreeSpace(const std::filesystem::path& folder, int64_t free_bytes);
// Of the coordinator's state folder; `system` is NetworkFileSystem() of it.
Check CheckFileSystem(const std::filesystem::path& folder, std::string_view system);
Check CheckWriteSpeed(const std::filesystem::path& folder, double bytes_per_second);

// `opened`: what CheckOpensBeneath() said of a file there.
Check CheckOpening(const std::filesystem::path& folder, const absl::Status& opened);

// Space and speed of the disk of a folder, or of the nearest folder above it that exists, and
// whether files there can be opened as the daemons open them. Writes and removes 64 MiB. A folder
// that cannot be written is a check that failed.
std::vector<Check> MeasureFolder(const std::filesystem::path& folder);

// The program that answers at HOST:PORT on this machine.
enum class PortUser { kNobody, kOurs, kAnother };
Check CheckPort(const std::string& setting, const std::string& address, PortUser user);

// `grpc`: whether a gRPC server is ours there, else an HTTP server whose /healthz answers as the
// coordinator's. Over TLS a server is ours that has the key of `certificate_file`; empty: without
// TLS only. InvalidArgument for an address that is not HOST:PORT; waits some seconds at most.
absl::StatusOr<PortUser> AskPort(const std::string& address, bool grpc,
                                 const std::string& certificate_file = "");

}  // namespace nsa::client
