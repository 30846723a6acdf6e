#include "client/connect/local/count_data.h"

#include <filesystem>

#include "client/connect/local/local_worker.h"
#include "common/base/status.h"
#include "common/job/load.h"
#include "common/run/atomic_file.h"

namespace nsa::client {

namespace fs = std::filesystem;

absl::StatusOr<v1::CorpusSummary> CountData(const v1::JobSpec& spec, const std::string& program,
                                            Interrupt* interrupt) {
  NSA_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Make());
  const fs::path job = scratch.path() / "job.yaml";
  NSA_RETURN_IF_ERROR(WriteFileAtomically(job, ToYaml(spec)));
  v1::CorpusSummary summary;
  NSA_RETURN_IF_ERROR(AskWorker(program, {"count", job.string()}, interrupt, &summary));
  return summary;
}

}  // namespace nsa::client
