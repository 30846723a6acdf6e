#include "server/rpc/heartbeat_limits.h"

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/require.h"

namespace nsa::server {
namespace {

constexpr size_t kHashDigits = 16;

absl::Status TooLarge(const std::string& what, size_t value, size_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", value, " (at most ", limit, "); the heartbeat is refused"));
}

absl::Status CheckWord(const std::string& what, const std::string& word) {
  if (word.size() <= limits::kReportedWordBytes) return absl::OkStatus();
  return TooLarge(absl::StrCat(what, " in bytes"), word.size(), limits::kReportedWordBytes);
}

absl::Status CheckHash(const std::string& what, const std::string& hash) {
  if (hash.empty()) return absl::OkStatus();
  const bool hexadecimal = hash.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (hexadecimal && hash.size() == kHashDigits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", hash.size(), " bytes (must be ", kHashDigits,
                   " lower-case hexadecimal digits); the heartbeat is refused"));
}

}  // namespace

absl::Status CheckNodeName(const std::string& name) {
  if (limits::IsPlainName(name, limits::kNodeNameBytes)) return absl::OkStatus();
  if (name.empty()) return absl::InvalidArgumentError("node.name: empty; an agent needs a name");
  return absl::InvalidArgumentError(
      absl::StrCat("node.name: ", name.size(), " bytes (must be 1 to ", limits::kNodeNameBytes,
                   " letters, digits and -_., not beginning with - or .); give the agent another "
                   "node_name"));
}

absl::Status CheckHeartbeat(const v1::HeartbeatRequest& heartbeat) {
  const v1::NodeInfo& node = heartbeat.node();
  NSA_RETURN_IF_ERROR(CheckNodeName(node.name()));
  if (const size_t bytes = heartbeat.ByteSizeLong(); bytes > limits::kHeartbeatBytes) {
    return TooLarge("bytes", bytes, limits::kHeartbeatBytes);
  }
  if (node.gpus_size() > limits::kGpusOfNode) {
    return TooLarge("node.gpus", static_cast<size_t>(node.gpus_size()), limits::kGpusOfNode);
  }
  if (node.labels_size() > kMostRequired) {
    return TooLarge("node.labels", node.labels().size(), kMostRequired);
  }
  for (const auto& [key, value] : node.labels()) {
    const std::string fault = LabelFault(key, value);
    if (!fault.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("node.labels: ", fault, "; the heartbeat is refused"));
    }
  }
  if (heartbeat.workers_size() > limits::kWorkersOfNode) {
    return TooLarge("workers", static_cast<size_t>(heartbeat.workers_size()),
                    limits::kWorkersOfNode);
  }
  NSA_RETURN_IF_ERROR(CheckWord("incarnation", heartbeat.incarnation()));
  NSA_RETURN_IF_ERROR(CheckWord("store_id", heartbeat.store_id()));
  NSA_RETURN_IF_ERROR(CheckWord("boot_id", heartbeat.boot_id()));
  NSA_RETURN_IF_ERROR(CheckWord("node.driver_version", node.driver_version()));
  NSA_RETURN_IF_ERROR(CheckWord("node.agent_version", node.agent_version()));
  NSA_RETURN_IF_ERROR(CheckWord("node.rank_address", node.rank_address()));
  NSA_RETURN_IF_ERROR(CheckWord("node.allocation", node.allocation()));
  if (!node.nccl_version().empty() &&
      !limits::IsPlainName(node.nccl_version(), limits::kReportedWordBytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node.nccl_version: ", node.nccl_version().size(), " bytes (must be 1 to ",
        limits::kReportedWordBytes, " letters, digits and -_.); the heartbeat is refused"));
  }
  NSA_RETURN_IF_ERROR(CheckHash("node.worker_hash", node.worker_hash()));
  NSA_RETURN_IF_ERROR(CheckHash("node.cuda_worker_hash", node.cuda_worker_hash()));
  for (const v1::GpuInfo& gpu : node.gpus()) {
    NSA_RETURN_IF_ERROR(CheckWord("node.gpus.uuid", gpu.uuid()));
    NSA_RETURN_IF_ERROR(CheckWord("node.gpus.name", gpu.name()));
  }
  for (const v1::WorkerObservation& worker : heartbeat.workers()) {
    NSA_RETURN_IF_ERROR(CheckWord("workers.job_id", worker.job_id()));
    NSA_RETURN_IF_ERROR(CheckWord("workers.phase", worker.phase()));
    NSA_RETURN_IF_ERROR(CheckWord("workers.process_state", worker.process_state()));
    NSA_RETURN_IF_ERROR(CheckWord("workers.rank_address", worker.rank_address()));
  }
  return absl::OkStatus();
}

}  // namespace nsa::server
