#include "client/connect/local/count_data.h"

#include <filesystem>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/connect/local/local_worker.h"
#include "common/base/status.h"
#include "common/job/load.h"
#include "common/run/atomic_file.h"
#include "google/protobuf/util/json_util.h"

namespace nsa::client {

namespace fs = std::filesystem;

absl::StatusOr<v1::CorpusSummary> CountData(const v1::JobSpec& spec, const std::string& program,
                                            Interrupt* interrupt) {
  NSA_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Make());
  const fs::path job = scratch.path() / "job.yaml";
  NSA_RETURN_IF_ERROR(WriteFileAtomically(job, ToYaml(spec)));
  NSA_ASSIGN_OR_RETURN(const std::string said,
                       RunWorker(program, {"--job", job.string(), "--count-data"}, interrupt));
  v1::CorpusSummary summary;
  if (google::protobuf::util::JsonStringToMessage(said, &summary).ok()) return summary;
  return absl::InvalidArgumentError(absl::StrCat(absl::StripAsciiWhitespace(said), " (",
                                                 fs::path(program).filename().string(),
                                                 " ended with exit code 0)"));
}

}  // namespace nsa::client
