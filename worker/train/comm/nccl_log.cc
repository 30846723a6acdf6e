#include "worker/train/comm/nccl_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/clean_text.h"
#include "common/base/environment.h"
#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/mutex.h"

namespace nsa::train::nccl {
namespace {

constexpr int kPipeBytes = 1 << 20;
constexpr size_t kMostPorts = 64;

// The process's pipe, and what has come out of it.
struct Log {
  Mutex mutex;
  Fd read_end ABSL_GUARDED_BY(mutex);
  Fd write_end ABSL_GUARDED_BY(mutex);  // kept for NCCL to open
  LogReader reader ABSL_GUARDED_BY(mutex);
};

Log& TheLog() {
  static Log* const log = new Log;  // NCCL's threads may outlive main()
  return *log;
}

// The text behind `mark`; nothing if `line` does not contain it.
std::optional<absl::string_view> Behind(absl::string_view line, absl::string_view mark) {
  const size_t at = line.find(mark);
  if (at == absl::string_view::npos) return std::nullopt;
  return line.substr(at + mark.size());
}

std::string Name(absl::string_view text) {
  return CleanLine(Shorten(std::string(absl::StripAsciiWhitespace(text)), LogReader::kMostName));
}

// "NET/IB/GDRDMA" of "NET/IB/0/GDRDMA", "P2P/CUMEM" of "P2P/CUMEM/read": what does not depend on
// the channel.
std::string Connection(absl::string_view via) {
  via = via.substr(0, via.find(" comm "));
  const std::vector<absl::string_view> parts = absl::StrSplit(via, '/');
  if (parts.size() < 2 || parts[0].empty() || parts[1].empty()) return "";
  const bool gpu_direct = parts[0] == "NET" && std::ranges::count(parts, "GDRDMA") > 0;
  return Name(absl::StrCat(parts[0], "/", parts[1], gpu_direct ? "/GDRDMA" : ""));
}

}  // namespace

std::string TransportText(const Transport& transport) {
  std::vector<std::string> parts;
  if (!transport.network.empty()) parts.push_back(absl::StrCat("network ", transport.network));
  if (!transport.connections.empty()) {
    parts.push_back(absl::StrCat("through ", absl::StrJoin(transport.connections, " and ")));
  }
  return absl::StrJoin(parts, ", ");
}

void LogReader::Add(std::string_view piece) {
  while (!piece.empty()) {
    const size_t end = piece.find('\n');
    const std::string_view part = piece.substr(0, end);
    line_.append(part.substr(0, kMostLine - line_.size()));
    if (end == std::string_view::npos) return;
    EndLine();
    piece.remove_prefix(end + 1);
  }
}

void LogReader::EndLine() {
  const std::string whole = std::exchange(line_, {});
  if (const auto warning = Behind(whole, " NCCL WARN "); warning.has_value()) {
    if (++warned_ > kMostWarnings) return;
    // Before it: "host:pid:tid [device] file.cc:line".
    const absl::string_view before =
        absl::string_view(whole).substr(0, whole.size() - warning->size() - 11);
    const absl::string_view place = before.substr(before.rfind(' ') + 1);
    warnings_.push_back(CleanLine(absl::StrCat(
        place, ": ", *warning, warned_ == kMostWarnings ? " (further ones are left out)" : "")));
    return;
  }
  const auto text = Behind(whole, " NCCL INFO ");
  if (!text.has_value()) return;
  if (absl::StartsWith(*text, "Using network ")) {
    transport_.network = Name(text->substr(14));
  } else if (absl::StartsWith(*text, "Assigned NET plugin ")) {
    transport_.network = Name(text->substr(20, text->find(" to comm") - 20));
  } else if (absl::StartsWith(*text, "Channel ") && text->find(" -> ") != absl::string_view::npos) {
    const std::string connection = Connection(Behind(*text, " via ").value_or(""));
    if (connection.empty() || transport_.connections.size() >= kMostConnections) return;
    transport_.connections.insert(connection);
  }
}

std::vector<std::string> LogReader::TakeWarnings() { return std::exchange(warnings_, {}); }

void RedirectLog() {
  Log& log = TheLog();
  MutexLock lock(&log.mutex);
  const std::string level = Environment("NCCL_DEBUG");
  const bool quiet = level.empty() || level == "WARN" || level == "VERSION";
  if (log.read_end.valid() || !quiet || !Environment("NCCL_DEBUG_FILE").empty() ||
      !Environment("NCCL_DEBUG_SUBSYS").empty()) {
    return;
  }
  int ends[2] = {};
  if (pipe2(ends, O_CLOEXEC) != 0) return;  // too many open files: training goes on without
  log.read_end = Fd(ends[0]);
  log.write_end = Fd(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);
  setenv("NCCL_DEBUG_FILE", absl::StrCat("/proc/self/fd/", ends[1]).c_str(), 1);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "INIT", 1);
}

Transport ReadLog() {
  Log& log = TheLog();
  MutexLock lock(&log.mutex);
  if (!log.read_end.valid()) return {};
  char piece[4096];
  // A pipe's content at most, even if others write meanwhile.
  for (int read_bytes = 0; read_bytes < kPipeBytes;) {
    const ssize_t count = read(log.read_end.get(), piece, sizeof(piece));
    if (count <= 0) break;
    log.reader.Add({piece, static_cast<size_t>(count)});
    read_bytes += static_cast<int>(count);
  }
  for (const std::string& warning : log.reader.TakeWarnings()) spdlog::warn("NCCL: {}", warning);
  return log.reader.transport();
}

std::vector<std::string> ActiveRdmaPorts(const std::filesystem::path& devices) {
  namespace fs = std::filesystem;
  std::vector<std::string> active;
  std::error_code error;
  for (fs::directory_iterator device(devices, error), end; !error && device != end;
       device.increment(error)) {
    std::error_code none;
    for (fs::directory_iterator port(device->path() / "ports", none); !none && port != end;
         port.increment(none)) {
      std::string state;
      std::getline(std::ifstream(port->path() / "state"), state);
      if (state.find("ACTIVE") == std::string::npos || active.size() >= kMostPorts) continue;
      active.push_back(CleanLine(
          absl::StrCat(device->path().filename().string(), ":", port->path().filename().string())));
    }
  }
  std::ranges::sort(active);
  return active;
}

std::string FallToSockets(const Transport& transport, const std::vector<std::string>& rdma_ports) {
  const bool wanted = Environment("NCCL_NET") == "Socket" || Environment("NCCL_IB_DISABLE") == "1";
  if (wanted || rdma_ports.empty() || !transport.connections.contains("NET/Socket")) return "";
  return absl::StrCat(
      "nccl_sockets: ", TransportText(transport), " (RDMA has a link at ",
      absl::StrJoin(rdma_ports, ", "),
      "); NCCL does not use it: check that the worker may open /dev/infiniband and lock memory "
      "(`nsactl doctor`), and what NCCL_IB_HCA names; NCCL_DEBUG=INFO in the agent's environment "
      "says why");
}

}  // namespace nsa::train::nccl
