#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/clean_text.h"
#include "common/base/job_file.h"
#include "common/base/json_shape.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/checkpoint/safetensors_file.h"
#include "common/estimate/layers.h"
#include "common/export/checkpoint_model.h"
#include "common/export/conversion.h"
#include "common/export/export.h"
#include "common/export/foreign_model.h"
#include "common/export/model_config_json.h"
#include "common/export/model_tensors.h"
#include "common/job/data/tokenizer_files.h"
#include "common/job/load.h"
#include "common/run/new_folder.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

namespace fs = std::filesystem;

constexpr char kTokenizerFile[] = "tokenizer.json";
constexpr char kStateFile[] = "checkpoint_state.json";
// As the trainer names the moments of a single rank (worker/train/checkpoint/slices.h).
constexpr char kMomentsFile[] = "optimizer-00000-of-00001.safetensors";
constexpr int64_t kLargestText = 100'000'000;

// Whether an index may name a file so: it stays in the folder, and takes no other file's place.
bool IsWeightFile(const nlohmann::json& name) {
  return name.is_string() && absl::EndsWith(name.get_ref<const std::string&>(), ".safetensors") &&
         std::ranges::none_of(name.get_ref<const std::string&>(),
                              [](unsigned char c) { return c == '/' || absl::ascii_iscntrl(c); });
}

absl::StatusOr<std::string> ReadText(const fs::path& path) {
  std::error_code error;
  const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
  if (error) return absl::ErrnoToStatus(error.value(), path.string());
  if (bytes > kLargestText) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes (at most %d); export the model again", path.string(), bytes, kLargestText));
  }
  return ReadJobFile(path, kLargestText);
}

absl::StatusOr<nlohmann::json> ReadJson(const fs::path& path) {
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  nlohmann::json json;
  if (IsShallow(text) && IsAsLargeAsItLooks(text)) {
    json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  }
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(
      path.string(), ": not a JSON object (at most 100 levels deep); export the model again"));
}

// Every tensor of an exported folder.
struct Source {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, const SafetensorsFile*> place;
};

absl::StatusOr<Source> OpenTensors(const fs::path& folder) {
  Source source;
  NSA_ASSIGN_OR_RETURN(const std::set<std::string> names, WeightFiles(folder));
  for (const std::string& name : names) {
    NSA_ASSIGN_OR_RETURN(auto file,
                         SafetensorsFile::Open(folder / name, SafetensorsTypes::kFloats));
    for (const auto& [tensor, info] : file->tensors()) {
      if (source.place.emplace(tensor, file.get()).second) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          folder.string(), ": tensor ", tensor, " is in two files; export the model again"));
    }
    source.files.push_back(std::move(file));
  }
  return source;
}

// What a checkpoint is made of: its state, and where the tensors of the stored model are in the
// folder, by their names. Those that are not listed have the same name there.
struct Plan {
  v1::CheckpointState state;
  fs::path folder;
  v1::JobSpec stored;  // of the model in the folder; that of `state`, unless it is converted
  bool converted = false;
  std::map<std::string, TensorSource> sources;
  bool foreign = false;
  bool with_tokenizer = false;  // the job's tokenizer becomes that of the folder

  TensorSource SourceOf(const std::string& name) const {
    const auto found = sources.find(name);
    return found == sources.end() ? TensorSource{name} : found->second;
  }
};

absl::Status CheckTensors(const Source& source, const Plan& plan) {
  std::set<std::string> unknown;
  for (const auto& [name, file] : source.place) {
    if (!plan.foreign || !IsRedundant(plan.stored, name)) unknown.insert(name);
  }
  for (const ModelTensor& tensor : ModelTensors(plan.stored)) {
    const std::string name = plan.SourceOf(tensor.name).name;
    const auto found = source.place.find(name);
    unknown.erase(name);
    if (found != source.place.end() && found->second->tensors().at(name).shape == tensor.shape) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrFormat(
        "tensor %s is [%s] (config.json describes [%s]); export the model again", name,
        found == source.place.end() ? "absent"
                                    : absl::StrJoin(found->second->tensors().at(name).shape, ", "),
        absl::StrJoin(tensor.shape, ", ")));
  }
  if (unknown.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "tensor ", *unknown.begin(), " (not in the model of config.json); export the model again"));
}

// Appends what a tensor begins as.
absl::Status AppendStart(const Source& source, const Plan& plan, const std::string& name,
                         NewFile* file, ImportResult* result) {
  const TensorStart start =
      plan.converted ? StartOf(plan.state.spec(), name) : TensorStart{name, {}};
  if (start.dense.empty()) return file->Append(std::as_bytes(std::span(start.values)));
  const TensorSource at = plan.SourceOf(start.dense);
  const SafetensorsFile& from = *source.place.at(at.name);
  const SafetensorsFile::Tensor& stored = from.tensors().at(at.name);
  result->widened |= stored.type != TensorType::kF32;
  if (at.heads == 0) return AppendTensor(from, stored, TensorType::kF32, file);
  const HeadOrder order = {.width = at.heads, .to_pairs = true, .factor = at.factor};
  return AppendHeads(from, stored, order, TensorType::kF32, file);
}

absl::Status WriteWeights(const Source& source, const Plan& plan,
                          const std::vector<ModelTensor>& tensors, const fs::path& path,
                          ImportResult* result) {
  std::vector<TensorHeader> headers;
  for (const ModelTensor& tensor : tensors) {
    headers.push_back({tensor.name, tensor.shape, tensor.size});
    result->parameters += tensor.size;
  }
  NSA_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  NSA_RETURN_IF_ERROR(file.Append(SafetensorsHeader(
      headers, TensorType::kF32, {{"format", "pt"}, {"step", absl::StrCat(plan.state.step())}})));
  for (const ModelTensor& tensor : tensors) {
    NSA_RETURN_IF_ERROR(AppendStart(source, plan, tensor.name, &file, result));
  }
  return file.Finish();
}

absl::Status WriteMoments(int64_t elements, int64_t step, const fs::path& path) {
  NSA_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  NSA_RETURN_IF_ERROR(file.Append(SafetensorsHeader(
      {{"exp_avg", {elements}, elements}, {"exp_avg_sq", {elements}, elements}}, TensorType::kF32,
      {{"begin", "0"},
       {"end", absl::StrCat(elements)},
       {"total", absl::StrCat(elements)},
       {"step", absl::StrCat(step)}})));
  NSA_RETURN_IF_ERROR(AppendZeros(8 * elements, &file));
  return file.Finish();
}

// A tokenizer.json beside the model has no token that the model does not have.
absl::Status CheckTokenizer(const fs::path& folder, const v1::JobSpec& spec) {
  std::error_code error;
  if (!fs::exists(folder / kTokenizerFile, error)) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(const TokenizerFacts facts, ReadTokenizerFacts(folder / kTokenizerFile));
  if (facts.tokens <= spec.model().vocab()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: %d tokens (vocab_size of config.json is %d); take the model's own",
                      (folder / kTokenizerFile).string(), facts.tokens, spec.model().vocab()));
}

constexpr int32_t kByteTokens = 256;

// What transformers saves of an exported model has no training state to name the tokenizer. A
// vocabulary of more than bytes is then that of the folder's tokenizer.json.
absl::Status TakeTokenizer(const fs::path& folder, v1::JobSpec* spec) {
  std::error_code error;
  if (spec->model().vocab() <= kByteTokens || !fs::exists(folder / kTokenizerFile, error)) {
    return absl::OkStatus();
  }
  spec->mutable_data()->set_tokenizer(v1::TOKENIZER_BPE);
  return CheckTokenizer(folder, *spec);
}

// Reads a model's folder with a config.json.
absl::Status ReadModelFolder(Plan* plan, ImportResult* result) {
  const fs::path& folder = plan->folder;
  v1::CheckpointState& state = plan->state;
  NSA_ASSIGN_OR_RETURN(const nlohmann::json config, ReadJson(folder / "config.json"));
  plan->foreign = IsForeign(config);
  std::error_code error;
  result->training_state = fs::exists(folder / kStateFile, error);
  if (plan->foreign) {
    NSA_ASSIGN_OR_RETURN(ForeignModel model, ReadForeignModel(config));
    NSA_RETURN_IF_ERROR(CheckTokenizer(folder, model.spec));
    *state.mutable_spec() = std::move(model.spec);
    plan->sources = std::move(model.sources);
  } else {
    NSA_ASSIGN_OR_RETURN(*state.mutable_spec(), SpecOfModelConfig(config));
    if (!result->training_state) NSA_RETURN_IF_ERROR(TakeTokenizer(folder, state.mutable_spec()));
  }
  if (result->training_state) {
    NSA_ASSIGN_OR_RETURN(state, ReadCheckpointStateFile(folder / kStateFile));
    ApplyDefaults(state.mutable_spec());
    NSA_RETURN_IF_ERROR(plan->foreign ? CheckForeignConfig(config, state.spec())
                                      : CheckModelConfig(config, state.spec()));
  }
  return absl::OkStatus();
}

// Reads a checkpoint instead.
absl::Status ReadCheckpoint(Plan* plan, ImportResult* result) {
  if (!plan->converted) {
    return absl::InvalidArgumentError(
        absl::StrCat(plan->folder.string(),
                     ": a checkpoint already (a model's folder, with a config.json); train on from "
                     "it, or convert it with --attention nsa"));
  }
  NSA_ASSIGN_OR_RETURN(CheckpointModel model, ReadCheckpointModel(plan->folder));
  plan->folder = std::move(model.path);
  plan->state = std::move(model.state);
  result->training_state = true;
  return absl::OkStatus();
}

// The plan for a folder; the state is without its files.
absl::StatusOr<Plan> PlanOf(const fs::path& folder, const fs::path& checkpoint,
                            const ImportOptions& options, ImportResult* result) {
  Plan plan;
  plan.folder = folder;
  v1::CheckpointState& state = plan.state;
  plan.converted = options.sparse.has_value();
  std::error_code error;
  if (!fs::exists(folder / "config.json", error) && LookUpNamed(folder).has_value()) {
    NSA_RETURN_IF_ERROR(ReadCheckpoint(&plan, result));
  } else {
    NSA_RETURN_IF_ERROR(ReadModelFolder(&plan, result));
  }
  plan.stored = state.spec();
  if (plan.converted) {
    state.Clear();
    NSA_ASSIGN_OR_RETURN(*state.mutable_spec(), ConvertedSpec(plan.stored, *options.sparse));
  }
  if (plan.converted || !result->training_state) state.set_job_hash(JobHash(state.spec()));
  v1::DataSpec* data = state.mutable_spec()->mutable_data();
  // A model that names no file of its own has none, whatever lies in the current directory.
  const bool own =
      !data->tokenizer_path().empty() &&
      fs::exists(TokenizerFilesOf(data->tokenizer(), data->tokenizer_path()).front(), error);
  if (HasTokenizerFiles(data->tokenizer()) && fs::exists(plan.folder / kTokenizerFile, error) &&
      !own) {
    data->set_tokenizer_path(fs::absolute(checkpoint, error).lexically_normal().string());
    plan.with_tokenizer = true;
  }
  state.set_world_size(1);
  state.clear_files();
  state.set_unix_nanos(absl::GetCurrentTimeNanos());
  result->step = state.step();
  for (const LayerAttention& layer : LayersOf(state.spec().nsa())) {
    result->layers.push_back(LayerText(layer));
  }
  return plan;
}

// Copies the tokenizer and its chat template, so that the folder is no longer needed.
absl::Status CopyTokenizer(const fs::path& folder, const fs::path& to) {
  std::error_code error;
  for (const char* const name : {kTokenizerFile, "tokenizer_config.json", "chat_template.jinja"}) {
    if (!fs::exists(folder / name, error)) continue;
    NSA_ASSIGN_OR_RETURN(const std::string text, ReadText(folder / name));
    NSA_RETURN_IF_ERROR(WriteNewFile(to / name, text));
  }
  return absl::OkStatus();
}

absl::Status AddFile(const fs::path& folder, const std::string& name, v1::CheckpointState* state) {
  v1::CheckpointFile* file = state->add_files();
  std::error_code error;
  file->set_name(name);
  file->set_bytes(static_cast<int64_t>(fs::file_size(folder / name, error)));
  NSA_ASSIGN_OR_RETURN(*file->mutable_xxh3_128(), HashFile(folder / name));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::set<std::string>> WeightFiles(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kWeightIndexFile, error)) return std::set<std::string>{kModelFile};
  NSA_ASSIGN_OR_RETURN(const nlohmann::json index, ReadJson(folder / kWeightIndexFile));
  std::set<std::string> names;
  const auto map = index.find("weight_map");
  for (const nlohmann::json& name : map == index.end() ? nlohmann::json::array() : *map) {
    if (!IsWeightFile(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(kWeightIndexFile, ": weight_map: ", CutText(name.dump(), 100),
                       " (names of .safetensors files in the folder); export the model again"));
    }
    names.insert(name.get<std::string>());
  }
  return names;
}

absl::Status CheckImport(const fs::path& folder, const fs::path& checkpoint,
                         const ImportOptions& options) {
  ImportResult ignored;
  return PlanOf(folder, checkpoint, options, &ignored).status();
}

absl::StatusOr<ImportResult> ImportModel(const fs::path& folder, const fs::path& checkpoint,
                                         const ImportOptions& options) {
  ImportResult result;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(
        absl::StrCat(folder.string(), ": not a folder (with a config.json); name one"));
  }
  NSA_ASSIGN_OR_RETURN(Plan plan, PlanOf(folder, checkpoint, options, &result));
  v1::CheckpointState& state = plan.state;
  const std::vector<ModelTensor> tensors = ModelTensors(state.spec());
  NSA_ASSIGN_OR_RETURN(const Source source, OpenTensors(plan.folder));
  NSA_RETURN_IF_ERROR(Annotate(CheckTensors(source, plan), folder.string()));
  NSA_ASSIGN_OR_RETURN(NewFolder target, NewFolder::Create(checkpoint));
  NSA_RETURN_IF_ERROR(WriteWeights(source, plan, tensors, target.path() / kModelFile, &result));
  NSA_RETURN_IF_ERROR(
      WriteMoments(FlatElements(tensors), state.step(), target.path() / kMomentsFile));
  NSA_RETURN_IF_ERROR(AddFile(target.path(), kModelFile, &state));
  NSA_RETURN_IF_ERROR(AddFile(target.path(), kMomentsFile, &state));
  if (plan.with_tokenizer) NSA_RETURN_IF_ERROR(CopyTokenizer(plan.folder, target.path()));
  NSA_ASSIGN_OR_RETURN(const std::string text, SerializeCheckpointState(state));
  NSA_RETURN_IF_ERROR(WriteNewFile(target.path() / "state.json", text));
  NSA_RETURN_IF_ERROR(target.Publish());
  return result;
}

}  // namespace nsa
