#include "worker/train/data/prepared/commands.h"

#include "common/base/current_folder.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/job/load.h"
#include "google/protobuf/util/json_util.h"
#include "worker/train/data/loader.h"
#include "worker/train/data/prepared/folders.h"
#include "worker/train/data/prepared/inspect.h"
#include "worker/train/data/prepared/prepare.h"
#include "worker/train/data/read/source_files.h"
#include "worker/train/data/stream/count.h"

namespace nsa::train {
namespace {

absl::StatusOr<std::string> JsonOf(const google::protobuf::Message& message) {
  std::string json;
  if (google::protobuf::util::MessageToJsonString(message, &json).ok()) return json + "\n";
  return absl::InternalError("the answer about the data is no JSON");
}

// The job as the file has it.
absl::StatusOr<v1::JobSpec> SpecOf(const std::filesystem::path& job) {
  NSA_ASSIGN_OR_RETURN(const std::filesystem::path here, CurrentFolder());
  NSA_ASSIGN_OR_RETURN(JobFile file, LoadJobFile(job, here));
  return std::move(file.spec);
}

absl::StatusOr<v1::JobSpec> FullSpecOf(const std::filesystem::path& job) {
  NSA_ASSIGN_OR_RETURN(v1::JobSpec spec, SpecOf(job));
  ApplyDefaults(&spec);
  return spec;
}

// Started by hand: only the user's own permissions count.
absl::Status AddRemote(const v1::DataSpec& data, ReadProgress* progress) {
  NSA_ASSIGN_OR_RETURN(progress->remote, RemoteFor(data, {"*"}));
  return absl::OkStatus();
}

bool IsJobFile(const std::string& path) {
  return path.ends_with(".yaml") || path.ends_with(".yml");
}

}  // namespace

absl::StatusOr<std::string> CountDataCommand(const std::filesystem::path& job) {
  NSA_ASSIGN_OR_RETURN(const v1::JobSpec spec, FullSpecOf(job));
  ReadProgress progress;
  NSA_ASSIGN_OR_RETURN(const PreparedFolders prepared,
                       PreparedFolders::Open(spec.data(), &progress));
  NSA_RETURN_IF_ERROR(prepared.Verify());
  NSA_ASSIGN_OR_RETURN(const TokenCacheOptions cache, TokenCacheFromEnvironment());
  if (spec.data().stream()) {
    NSA_RETURN_IF_ERROR(AddRemote(spec.data(), &progress));
    NSA_ASSIGN_OR_RETURN(const v1::CorpusSummary counted,
                         CountStream(spec, progress.remote, cache));
    return JsonOf(counted);
  }
  NSA_ASSIGN_OR_RETURN(
      const auto data,
      DataLoader::Open(
          {.spec = spec, .vocab = VocabOf(spec), .allowed_urls = {"*"}, .cache = cache}));
  return JsonOf(SummaryOf(data->info()));
}

absl::StatusOr<std::string> PrepareDataCommand(const std::filesystem::path& job,
                                               const std::filesystem::path& out) {
  PrepareOptions options;
  NSA_ASSIGN_OR_RETURN(options.spec, SpecOf(job));
  options.out = out;
  options.on_progress = [](const std::string& text) { spdlog::info("{}", text); };
  ReadProgress progress;
  NSA_RETURN_IF_ERROR(AddRemote(options.spec.data(), &progress));
  NSA_ASSIGN_OR_RETURN(const v1::PreparedData prepared, PrepareData(options, &progress));
  return JsonOf(prepared);
}

absl::StatusOr<std::string> InspectDataCommand(const std::vector<std::string>& what) {
  v1::DataInspection all;
  for (const std::string& one : what) {
    ReadProgress progress;
    if (!IsJobFile(one)) {
      NSA_ASSIGN_OR_RETURN(const v1::DataInspection found, InspectPaths({one}, &progress));
      all.MergeFrom(found);
      continue;
    }
    NSA_ASSIGN_OR_RETURN(const v1::JobSpec spec, FullSpecOf(one));
    NSA_RETURN_IF_ERROR(AddRemote(spec.data(), &progress));
    NSA_ASSIGN_OR_RETURN(const v1::DataInspection found, InspectJob(spec, &progress));
    all.MergeFrom(found);
  }
  return JsonOf(all);
}

}  // namespace nsa::train
