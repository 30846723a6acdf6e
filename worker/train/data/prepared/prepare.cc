#include "worker/train/data/prepared/prepare.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/job/data/data_files.h"
#include "common/job/data/prepared.h"
#include "common/job/data_source.h"
#include "common/job/load.h"
#include "google/protobuf/util/json_util.h"
#include "worker/train/data/encoder.h"
#include "worker/train/data/prepared/hashed_file.h"
#include "worker/train/data/prepared/set_writer.h"
#include "worker/train/data/prepared/staging.h"
#include "worker/train/data/read/source_files.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kFormatVersion = 1;
constexpr absl::Duration kLogEvery = absl::Seconds(10);  // between two sentences about the progress

// A set of a job's files, and the folder that it becomes.
struct NamedSet {
  DataFiles files;
  std::string folder;
};

std::string FolderNamed(const std::string& name) {
  return absl::StrCat(name, std::string(kPreparedEnding));
}

std::string FolderOfVal(const v1::DataSpec& data, int index) {
  return FolderNamed(data.mix().empty() ? "val" : absl::StrCat("val.", index));
}

std::vector<NamedSet> SetsOf(const v1::DataSpec& data) {
  std::vector<NamedSet> sets;
  for (DataFiles& files : TrainingFiles(data)) {
    const std::string name = data.mix().empty() ? "train" : absl::StrCat("mix-", files.name);
    sets.push_back({std::move(files), FolderNamed(name)});
  }
  for (DataFiles& files : ValidationFiles(data)) {
    const std::string folder = FolderOfVal(data, files.first);
    sets.push_back({std::move(files), folder});
  }
  for (DataFiles& files : NamedValidationFiles(data)) {
    const std::string folder = FolderNamed(absl::StrCat("val-", files.name));
    sets.push_back({std::move(files), folder});
  }
  return sets;
}

// A folder beside that of the job on the files, which may have its run there: OUT_DIR-prepared,
// with a number if that exists.
std::string OutDirBeside(const std::string& out_dir) {
  const std::string beside = absl::StrCat(out_dir, "-prepared");
  std::string place = beside;
  std::error_code error;
  for (int i = 2; fs::exists(place, error); ++i) place = absl::StrCat(beside, "-", i);
  return place;
}

// What is written as job.yaml. The folder may be moved, so its own paths are relative.
v1::JobSpec JobToWrite(const v1::JobSpec& spec) {
  v1::JobSpec job = JobOnPrepared(spec, "");
  if (spec.train().has_out_dir()) {
    job.mutable_train()->set_out_dir(OutDirBeside(spec.train().out_dir()));
  }
  return job;
}

// The text of a message in a file of the folder.
absl::StatusOr<std::string> PreparedJson(const v1::PreparedData& data) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(data, &text, options);
  if (!printed.ok()) return absl::InternalError(absl::StrCat(kPreparedJob, ": no JSON"));
  return text;
}

// Everything that preparing the sets of a job shares.
class Preparer {
 public:
  Preparer(const PrepareOptions& options, const v1::JobSpec& full, DocumentEncoder encoder,
           ReadProgress* progress)
      : options_(options),
        data_(full.data()),
        vocab_(VocabOf(full)),
        encoder_(std::move(encoder)),
        progress_(progress),
        sources_(progress),
        told_(clock_.Monotonic()) {}

  absl::Status CheckSources() {
    NSA_RETURN_IF_ERROR(sources_.CheckFiles(data_));
    NSA_ASSIGN_OR_RETURN(tokenizer_sha256_,
                         ReadsText(data_) ? TokenizerSha256(data_) : std::string());
    return absl::OkStatus();
  }

  // Writes a set as `folder`/set.folder.
  absl::StatusOr<v1::PreparedSet> Prepare(const NamedSet& set, const fs::path& folder) {
    NSA_ASSIGN_OR_RETURN(std::vector<std::string> paths, sources_.Expand(set.files));
    SetWriter writer({.files = set.files,
                      .paths = std::move(paths),
                      .vocab = vocab_,
                      .tokenizer = data_.tokenizer(),
                      .tokenizer_sha256 = tokenizer_sha256_,
                      .chat_format = encoder_.chat_format(),
                      .passage_bytes = PassageBytesFor(data_),
                      .shard_bytes = options_.shard_bytes,
                      .shard_documents = options_.shard_documents,
                      .on_document =
                          [&](const v1::PreparedManifest& manifest) {
                            Tell(set.files, manifest);
                            return absl::OkStatus();
                          }},
                     encoder_, progress_);
    const fs::path path = folder / set.folder;
    NSA_ASSIGN_OR_RETURN(const v1::PreparedManifest manifest, writer.Write(path));
    std::error_code ignored;
    return Summary(set, manifest,
                   static_cast<int64_t>(fs::file_size(path / kPreparedManifest, ignored)));
  }

 private:
  void Tell(const DataFiles& set, const v1::PreparedManifest& manifest) {
    const absl::Duration now = clock_.Monotonic();
    if (now - told_ < kLogEvery) return;
    told_ = now;
    if (!options_.on_progress) return;
    options_.on_progress(absl::StrFormat("%s: %d documents, %d tokens", set.field,
                                         manifest.documents(), manifest.tokens()));
  }

  static v1::PreparedSet Summary(const NamedSet& set, const v1::PreparedManifest& manifest,
                                 int64_t manifest_bytes) {
    v1::PreparedSet summary;
    summary.set_folder(set.folder);
    summary.set_field(set.files.field);
    summary.set_files(manifest.sources_size());
    summary.set_documents(manifest.documents());
    summary.set_tokens(manifest.tokens());
    summary.set_text_bytes(manifest.text_bytes());
    summary.set_null_rows(manifest.null_rows());
    summary.set_empty_files(EmptyFilesOf(manifest));
    *summary.mutable_warnings() = manifest.filter().warnings();
    int64_t bytes = manifest_bytes + manifest.tokens() * manifest.token_bytes() +
                    manifest.documents() * kDocumentHashBytes;
    for (const v1::PreparedShard& shard : manifest.shards()) bytes += shard.index_bytes();
    summary.set_bytes(bytes);
    return summary;
  }

  const PrepareOptions& options_;
  const v1::DataSpec& data_;
  const int32_t vocab_;
  const DocumentEncoder encoder_;
  ReadProgress* const progress_;
  const SourceFiles sources_;
  const RealClock clock_;
  absl::Duration told_;
  std::string tokenizer_sha256_;
};

}  // namespace

absl::StatusOr<v1::PreparedData> PrepareData(const PrepareOptions& options,
                                             ReadProgress* progress) {
  const RealClock clock;
  const absl::Duration started = clock.Monotonic();
  v1::JobSpec full = options.spec;
  ApplyDefaults(&full);
  if (full.data().mix().empty() && !DataSourceInfoOf(full.data().source()).has_files()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.source: generates tokens (", SourcesWithFiles(), "); there is nothing to prepare"));
  }
  NSA_ASSIGN_OR_RETURN(DocumentEncoder encoder, DocumentEncoder::Make(full.data(), VocabOf(full)));
  Preparer preparer(options, full, std::move(encoder), progress);
  NSA_RETURN_IF_ERROR(preparer.CheckSources());
  NSA_ASSIGN_OR_RETURN(Staging staging, Staging::Create(options.out));
  v1::PreparedData prepared;
  for (const NamedSet& set : SetsOf(full.data())) {
    NSA_ASSIGN_OR_RETURN(*prepared.add_sets(), preparer.Prepare(set, staging.path()));
  }
  prepared.set_format_version(kFormatVersion);
  prepared.set_folder(".");
  prepared.set_job_file("job.yaml");
  NSA_RETURN_IF_ERROR(
      WriteHashedFile(staging.path() / "job.yaml", ToYaml(JobToWrite(options.spec))).status());
  prepared.set_seconds(absl::ToDoubleSeconds(clock.Monotonic() - started));
  NSA_ASSIGN_OR_RETURN(const std::string text, PreparedJson(prepared));
  NSA_RETURN_IF_ERROR(WriteHashedFile(staging.path() / kPreparedJob, text).status());
  prepared.set_folder(staging.target().string());
  prepared.set_job_file((staging.target() / "job.yaml").string());
  NSA_RETURN_IF_ERROR(staging.Publish());
  return prepared;
}

v1::JobSpec JobOnPrepared(const v1::JobSpec& spec, const fs::path& folder) {
  v1::JobSpec job = spec;
  v1::DataSpec* data = job.mutable_data();
  const auto place = [&](const std::string& name) { return (folder / name).string(); };
  // Text has a tokenizer without naming it, token files have not.
  if (ReadsText(*data) && data->tokenizer() == v1::TOKENIZER_UNSPECIFIED) {
    data->set_tokenizer(v1::TOKENIZER_BYTE);
  }
  data->clear_text_field();
  data->clear_where();
  data->clear_except();
  data->clear_val_where();
  data->clear_val_except();
  data->clear_stream();  // prepared data is mapped
  data->clear_shuffle_window();
  const v1::DataSpec before = *data;
  if (before.mix().empty()) {
    data->set_source(v1::DATA_SOURCE_TOKENS);
    data->clear_path();
    data->add_path(place(FolderNamed("train")));
  }
  for (v1::MixSource& mix : *data->mutable_mix()) {
    mix.set_source(v1::DATA_SOURCE_TOKENS);
    mix.clear_text_field();
    mix.clear_where();
    mix.clear_except();
    mix.clear_path();
    mix.add_path(place(FolderNamed(absl::StrCat("mix-", mix.name()))));
  }
  data->clear_val_path();
  for (const DataFiles& files : ValidationFiles(before)) {
    data->add_val_path(place(FolderOfVal(before, files.first)));
  }
  for (auto& [name, path] : *data->mutable_val()) {
    path = place(FolderNamed(absl::StrCat("val-", name)));
  }
  return job;
}

}  // namespace nsa::train
