#include "client/admin/machine_checks.h"

#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/admin/absolute.h"
#include "client/show/human.h"
#include "common/base/beneath.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "common/rpc/block_sigpipe.h"
#include "common/rpc/x509.h"
#include "common/run/atomic_file.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;
using Level = Check::Level;

constexpr rlim_t kFewDescriptors = 4096;
constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kLeastFree = kGiB;
constexpr int64_t kLittleFree = 20 * kGiB;
constexpr double kSlowDisk = 50e6;  // bytes a second: a checkpoint of 1 GB takes 20 s
constexpr size_t kWritten = 64 << 20;
constexpr rlim_t kLockedMemory = 64 << 20;
constexpr int64_t kLargestClockError = 1'000'000;  // microseconds
constexpr int kPatienceMilliseconds = 2000;

std::string Shown(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : absl::StrCat(limit);
}

Check CheckCuda(const v1::NodeInfo& info, const std::string& name) {
  const std::string what = name + " CUDA";
  std::string value = absl::StrCat("driver ", info.driver_version());
  if (!info.cuda_compat_path().empty()) {
    absl::StrAppend(&value, ", forward compatibility in ", info.cuda_compat_path());
  }
  if (info.driver_version().empty() && info.gpus().empty()) {
    return {Level::kOk, what, "no NVIDIA driver: CPU ranks only", ""};
  }
  if (!info.cuda_worker()) {
    return {Level::kFailed, what, absl::StrCat(value, ": ", info.cuda_problem()),
            "mend that and restart the agent; `nsa-worker-cuda --check-gpu` there tries again"};
  }
  if (!info.cuda_problem().empty()) {
    return {Level::kWarning, what, absl::StrCat(value, ": ", info.cuda_problem()),
            "until then jobs have one GPU each; `nsa-worker-cuda --check-nccl` there tries again"};
  }
  return {Level::kOk, what, value, ""};
}

Check CheckNodeClock(const v1::Node& node, const std::string& name) {
  const absl::Duration ahead = absl::FromUnixNanos(node.info().unix_nanos()) -
                               absl::FromUnixNanos(node.heartbeat_unix_nanos());
  const bool agrees = absl::AbsDuration(ahead) <= absl::Microseconds(kLargestClockError);
  return {agrees ? Level::kOk : Level::kWarning, name + " clock",
          absl::StrFormat("%+.3f s from the coordinator's", absl::ToDoubleSeconds(ahead)),
          agrees ? ""
                 : "synchronize it, for example with chrony; a multi-machine job needs "
                   "clocks within 1 s of each other"};
}

// The nearest folder that exists.
fs::path Existing(fs::path folder) {
  std::error_code error;
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

absl::StatusOr<double> WriteSpeed(const fs::path& folder) {
  std::string name = (folder / ".nsa-doctor-XXXXXX").string();
  const Fd file(mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) return absl::ErrnoToStatus(errno, "cannot be written");
  unlink(name.c_str());
  const std::string block(1 << 20, 'x');
  const absl::Duration began = RealClock().Monotonic();
  for (size_t done = 0; done < kWritten; done += block.size()) {
    if (write(file.get(), block.data(), block.size()) != static_cast<ssize_t>(block.size())) {
      return absl::ErrnoToStatus(errno, "cannot be written");
    }
  }
  if (fdatasync(file.get()) != 0) return absl::ErrnoToStatus(errno, "cannot be written");
  return kWritten / absl::ToDoubleSeconds(RealClock().Monotonic() - began);
}

// Opens a file there as daemons and workers do it.
Check TryOpening(const fs::path& folder) {
  std::string name = (folder / ".nsa-doctor-XXXXXX").string();
  const Fd file(mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) return CheckOpening(folder, absl::ErrnoToStatus(errno, "cannot be written"));
  const absl::Status opened = CheckOpensBeneath(name);
  unlink(name.c_str());
  return CheckOpening(folder, opened);
}

// A connection to HOST:PORT; not valid when nobody listens there.
absl::StatusOr<Fd> Connect(const std::string& address) {
  NSA_ASSIGN_OR_RETURN(HostPort at, ParseHostPort("address", address));
  // To ask who listens on every address, this machine's own is enough.
  if (at.host == "0.0.0.0" || at.host == "::") at.host = "localhost";
  const absl::StatusOr<SocketAddresses> found = AddressesOf(at);
  if (!found.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("address: '", address, "' (HOST:PORT of this machine); correct it"));
  }
  for (const addrinfo* one = found->get(); one != nullptr; one = one->ai_next) {
    Fd socket = ConnectTo(one->ai_addr, one->ai_addrlen, absl::Milliseconds(kPatienceMilliseconds));
    if (socket.valid()) return socket;
  }
  return Fd();
}

// Whether the server at an address shows a certificate with the same key. Renewed certificates
// keep theirs. A server that wants a client's certificate shows its own before.
bool HasKeyOf(const std::string& address, const std::string& certificate_file) {
  const absl::StatusOr<std::string> pem = ReadWholeFile(certificate_file);
  if (certificate_file.empty() || !pem.ok()) return false;
  const absl::StatusOr<x509::Cert> own = x509::ReadCert(*pem);
  const absl::StatusOr<Fd> socket = Connect(address);
  if (!own.ok() || !socket.ok() || !socket->valid()) return false;
  BlockSigpipe();  // the server may refuse this client at any moment
  constexpr timeval kPatience{.tv_sec = kPatienceMilliseconds / 1000, .tv_usec = 0};
  fcntl(socket->get(), F_SETFL, 0);  // it blocks
  setsockopt(socket->get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  setsockopt(socket->get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  const std::unique_ptr<SSL_CTX, x509::Free<SSL_CTX_free>> context(
      SSL_CTX_new(TLS_client_method()));
  const std::unique_ptr<SSL, x509::Free<SSL_free>> ssl(SSL_new(context.get()));
  SSL_set_fd(ssl.get(), socket->get());
  SSL_connect(ssl.get());
  const x509::Cert shown(SSL_get1_peer_certificate(ssl.get()));
  return shown != nullptr &&
         EVP_PKEY_eq(X509_get0_pubkey(shown.get()), X509_get0_pubkey(own->get())) == 1;
}

}  // namespace

std::vector<Check> CheckNode(const v1::Node& node, absl::Time now) {
  const v1::NodeInfo& info = node.info();
  const std::string name = absl::StrCat("node ", info.name());
  std::vector<Check> checks;
  const bool ready = node.state() == "READY";
  checks.push_back(
      {ready ? Level::kOk : Level::kFailed, name,
       absl::StrCat(node.state(), ", last heartbeat ", HumanAge(now, node.heartbeat_unix_nanos())),
       ready ? "" : "start its agent, or see the agent's log"});
  if (info.unix_nanos() != 0) checks.push_back(CheckNodeClock(node, name));
  if (info.gpus_age_seconds() < 0) {
    checks.push_back({Level::kWarning, name + " CUDA", "the driver has not answered yet",
                      "if that lasts, see whether `nvidia-smi` there answers"});
    return checks;
  }
  checks.push_back(CheckCuda(info, name));
  for (const v1::GpuInfo& gpu : info.gpus()) {
    const bool healthy = gpu.fault().empty();
    checks.push_back({healthy ? Level::kOk : Level::kFailed,
                      absl::StrCat(name, " ", gpu.uuid().empty() ? "GPU" : gpu.uuid()),
                      absl::StrCat(gpu.name(), ", ", HumanBytes(gpu.free_bytes()), " of ",
                                   HumanBytes(gpu.memory_bytes()), " free",
                                   healthy ? "" : absl::StrCat(", ", gpu.fault())),
                      healthy ? "" : "no rank is placed on it; reset the GPU or replace it"});
  }
  return checks;
}

Check CheckCertificate(const CertificateEnd& end, absl::Time now) {
  const bool soon = EndsSoon(end, now);
  return {soon ? Level::kWarning : Level::kOk, absl::StrCat("certificate ", end.file),
          EndText(end, now), soon ? RenewalText(end) : ""};
}

Check CheckDescriptors(const rlimit& limit) {
  const bool few = limit.rlim_max != RLIM_INFINITY && limit.rlim_max < kFewDescriptors;
  return {few ? Level::kWarning : Level::kOk, "open files", Shown(limit.rlim_max),
          few ? absl::StrCat("every connection is one (at least ", kFewDescriptors,
                             "); raise LimitNOFILE= of the unit or `ulimit -Hn`")
              : ""};
}

Check CheckLockedMemory(const rlimit& limit) {
  const bool little = limit.rlim_max != RLIM_INFINITY && limit.rlim_max < kLockedMemory;
  return {little ? Level::kWarning : Level::kOk, "locked memory", Shown(limit.rlim_max),
          little ? "NCCL over InfiniBand locks memory; set LimitMEMLOCK=infinity" : ""};
}

Check CheckCoreDumps(const rlimit& limit, const std::string& pattern) {
  const bool piped = absl::StartsWith(pattern, "|");
  const bool written = limit.rlim_cur > 0 && !piped;
  return {
      written ? Level::kWarning : Level::kOk, "core dumps",
      limit.rlim_cur == 0 ? "none"
      : piped             ? "given to a program"
                          : absl::StrCat("written, at most ", Shown(limit.rlim_cur)),
      written
          ? "a worker that crashes writes its whole memory; set LimitCORE=0 unless you want that"
          : ""};
}

Check CheckClock(absl::Time now, const timex& clock, int state) {
  constexpr absl::CivilYear kBuilt(2026);
  const std::string shown = Timestamp(absl::ToUnixNanos(now));
  if (absl::ToCivilYear(now, absl::UTCTimeZone()) < kBuilt) {
    return {Level::kFailed, "clock", shown,
            "it is before this program was made, so certificates and tokens fail; set the clock"};
  }
  const bool loose = state == TIME_ERROR || (clock.status & STA_UNSYNC) != 0;
  if (loose || clock.maxerror > kLargestClockError) {
    return {Level::kWarning, "clock",
            absl::StrCat(shown, loose ? ", not synchronised" : ", synchronised loosely"),
            "install chrony, or enable systemd-timesyncd"};
  }
  return {Level::kOk, "clock", shown + ", synchronised", ""};
}

Check CheckFreeSpace(const fs::path& folder, int64_t free_bytes) {
  const Level level = free_bytes < kLeastFree    ? Level::kFailed
                      : free_bytes < kLittleFree ? Level::kWarning
                                                 : Level::kOk;
  return {level, absl::StrCat("space in ", folder.string()), HumanBytes(free_bytes) + " free",
          level == Level::kOk ? "" : "make room: checkpoints and logs need it"};
}

Check CheckFileSystem(const fs::path& folder, std::string_view system) {
  const std::string what = absl::StrCat("file system of ", folder.string());
  if (system.empty()) return {Level::kOk, what, "is not one of a network", ""};
  return {Level::kWarning, what, std::string(system),
          "SQLite can lose or damage the job store there; put state_dir on a local disk"};
}

Check CheckWriteSpeed(const fs::path& folder, double bytes_per_second) {
  const bool slow = bytes_per_second < kSlowDisk;
  return {slow ? Level::kWarning : Level::kOk, absl::StrCat("speed of ", folder.string()),
          absl::StrFormat("%.0f MB/s", bytes_per_second / 1e6),
          slow ? "ranks wait for checkpoints this long; put out_dir on a faster disk" : ""};
}

Check CheckOpening(const fs::path& folder, const absl::Status& opened) {
  const std::string what = absl::StrCat("files in ", folder.string());
  if (opened.ok()) return {Level::kOk, what, "can be opened", ""};
  const std::string text(opened.message());
  const size_t cut = std::min(text.rfind("; "), text.size());
  return {Level::kFailed, what, text.substr(0, cut),
          cut < text.size() ? text.substr(cut + 2) : "see whether this user can write there"};
}

std::vector<Check> MeasureFolder(const fs::path& wanted) {
  const fs::path folder = Existing(Absolute(wanted.string()));
  struct statvfs space {};
  std::vector<Check> checks;
  if (statvfs(folder.c_str(), &space) == 0) {
    checks.push_back(CheckFreeSpace(folder, static_cast<int64_t>(space.f_bavail * space.f_frsize)));
  }
  const absl::StatusOr<double> speed = WriteSpeed(folder);
  checks.push_back(speed.ok()
                       ? CheckWriteSpeed(folder, *speed)
                       : Check{Level::kFailed, absl::StrCat("speed of ", folder.string()),
                               std::string(speed.status().message()),
                               "choose a folder that this user can write, on a disk with room"});
  if (speed.ok()) checks.push_back(TryOpening(folder));
  return checks;
}

Check CheckPort(const std::string& setting, const std::string& address, PortUser user) {
  switch (user) {
    case PortUser::kNobody:
      return {Level::kOk, setting, address + " is free", ""};
    case PortUser::kOurs:
      return {Level::kOk, setting, address + " is answered by a coordinator", ""};
    case PortUser::kAnother:
      break;
  }
  return {Level::kFailed, setting, address + " is taken by another program",
          "`ss -ltnp` shows which; end it, or choose another port"};
}

absl::StatusOr<PortUser> AskPort(const std::string& address, bool grpc,
                                 const std::string& certificate_file) {
  absl::StatusOr<Fd> socket = Connect(address);
  if (!socket.ok()) return socket.status();
  if (!socket->valid()) return PortUser::kNobody;
  // An HTTP/2 connection begins with the preface and SETTINGS; a server answers with its own.
  const std::string question =
      grpc ? std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33)
           : "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  std::string answer;
  if (send(socket->get(), question.data(), question.size(), MSG_NOSIGNAL) ==
      static_cast<ssize_t>(question.size())) {
    char bytes[4096];
    pollfd ready{.fd = socket->get(), .events = POLLIN, .revents = 0};
    while (poll(&ready, 1, kPatienceMilliseconds) == 1) {
      const ssize_t got = recv(socket->get(), bytes, sizeof(bytes), 0);
      if (got <= 0) break;
      answer.append(bytes, static_cast<size_t>(got));
      if (grpc || answer.size() > sizeof(bytes)) break;
    }
  }
  const bool ours = grpc ? answer.size() >= 9 && answer[3] == 4
                         : absl::StrContains(answer, "\r\n\r\nok\n") ||
                               absl::StrContains(answer, "\r\n\r\nnot serving\n");
  return ours || HasKeyOf(address, certificate_file) ? PortUser::kOurs : PortUser::kAnother;
}

}  // namespace nsa::client
