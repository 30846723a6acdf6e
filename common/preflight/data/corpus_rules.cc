// Rules about the text in the files: whether it is enough, and whether validation data is separate
// from training data.
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/base/fd.h"
#include "common/base/job_file.h"
#include "common/estimate/estimate.h"
#include "common/job/data/held_out.h"
#include "common/job/data/large_data.h"
#include "common/job/data/sha256.h"
#include "common/job/data/tokenizer_files.h"
#include "common/job/data/unpacked_size.h"
#include "common/job/data/url.h"
#include "common/preflight/data/data_facts.h"

namespace nsa {
namespace {

// What of the bytes of JSON lines becomes documents.
struct Shares {
  double passing = 1;  // of lines that pass the filter
  double text = 1;     // of text in these
};

// Of the first files of a set, from some of their lines. 1 of other sources and of what is not
// here, and the text also of conversations, which is spread over several fields.
Shares SharesOf(const PreflightFacts& facts, const DataFiles& files) {
  if (files.source != v1::DATA_SOURCE_JSONL) return {};
  double text = 0, passing = 0, all = 0;
  int sampled = 0;
  const std::vector<NamedFile> named = FilesOf(facts, {files});
  for (const NamedFile& file : named) {
    if (sampled == kMostSampledFiles || facts.abandoned()) break;
    if (file.prepared()) continue;
    const auto bytes = static_cast<double>(JobFileBytes(file.path).value_or(0));
    const LineSample& sample = SampleOf(facts, file, named.size());
    all += bytes;
    passing += bytes * sample.PassingShare();
    text += bytes * sample.PassingShare() * sample.TextShare();
    ++sampled;
  }
  return {all > 0 ? passing / all : 1, passing > 0 && !files.conversations ? text / passing : 1};
}

// Bytes in the files that pass their filters, after decompression; if they are compressed, roughly
// or what they say, but never more than a rank holds of such files. Without those of prepared data,
// which is mapped and not held. nullopt if the size of a file is unknown.
std::optional<double> TextBytes(const PreflightFacts& facts, const std::vector<DataFiles>& all) {
  double bytes = 0;
  int64_t on_disk = 0;
  for (const DataFiles& files : all) {
    const double passing = files.filter == nullptr ? 1 : SharesOf(facts, files).passing;
    for (const NamedFile& file : FilesOf(facts, {files})) {
      if (file.prepared()) continue;
      const std::optional<int64_t> size = JobFileBytes(file.path);
      if (!size) return std::nullopt;
      const bool packed = IsCompressed(file.path) || file.source->format == DocumentFormat::kRows;
      on_disk += *size;
      bytes +=
          passing * std::max(static_cast<double>(*size) * (packed ? kTextPerCompressedByte : 1),
                             static_cast<double>(packed ? SaidUnpackedBytes(file.path) : 0));
    }
  }
  return std::min(bytes, static_cast<double>(MostHeldOf(on_disk)));
}

// Tokens of prepared data; 0 for a folder that cannot be read, which DATA_PREPARED reports.
double PreparedTokens(const PreflightFacts& facts, const DataFiles& files) {
  double tokens = 0;
  for (const NamedFile& file : FilesOf(facts, {files})) {
    if (!file.prepared()) continue;
    const auto manifest = ReadPrepared(file.path);
    if (manifest.ok()) tokens += static_cast<double>(manifest->tokens());
  }
  return tokens;
}

// Roughly how many tokens are made of the files, without those of prepared data. Assumes that a
// token of byte pairs is four bytes of text, and that token files spend four bytes on a token only
// if the vocabulary needs them.
std::optional<double> TokensOfFiles(const PreflightFacts& facts, const DataFiles& files) {
  const std::optional<double> bytes = TextBytes(facts, {files});
  if (!bytes) return std::nullopt;
  if (!DataSourceInfoOf(files.source).has_text()) {
    return *bytes / (VocabOf(facts.spec) > 65536 ? 4 : 2);
  }
  const double text = *bytes * SharesOf(facts, files).text;
  return HasTokenizerFiles(facts.spec.data().tokenizer()) ? text / 4 : text;
}

std::optional<double> Tokens(const PreflightFacts& facts, const DataFiles& files) {
  const std::optional<double> tokens = TokensOfFiles(facts, files);
  if (!tokens) return std::nullopt;
  return *tokens + PreparedTokens(facts, files);
}

// Bytes that a token takes in a worker.
int TokenBytesOf(const PreflightFacts& facts) {
  const int32_t vocab = VocabOf(facts.spec);
  if (LearnsAnswers(facts.spec.data())) return 4;
  return vocab <= 256 ? 1 : vocab <= 65536 ? 2 : 4;
}

// Whether workers make the tokens once for the machine and map them. They do so with large data
// that fits into their cache, whose size on that machine is not known here: assumes the default.
bool IsMapped(const PreflightFacts& facts) {
  const std::vector<DataFiles> all = AllDataFiles(facts.spec.data());
  double bytes = 0;
  for (const NamedFile& file : FilesOf(facts, all)) {
    if (file.prepared()) continue;
    bytes += static_cast<double>(JobFileBytes(file.path).value_or(0));
  }
  if (bytes < kLargeDataBytes) return false;
  double tokens = 0;
  for (const DataFiles& files : all) tokens += TokensOfFiles(facts, files).value_or(0);
  return tokens * TokenBytesOf(facts) <= kDataCacheBytes;
}

Problems TooSmallFor(const PreflightFacts& facts, const DataFiles& files) {
  if (files.conversations) return {};  // a conversation is a row of its own, however short it is
  const std::optional<double> have = Tokens(facts, files);
  if (!have) return {};
  const auto& train = facts.spec.train();
  const int64_t sequences = files.name.empty() ? train.batch_size() : 1;
  const double batch = 1.0 * static_cast<double>(sequences) * (train.seq_len() + 1);
  if (*have < batch) {
    return {{files.field,
             absl::StrFormat(
                 "about %s tokens (one %s takes %s)", Grouped(static_cast<int64_t>(*have)),
                 files.name.empty() ? "batch" : "sequence", Grouped(static_cast<int64_t>(batch))),
             "add text, or use a smaller batch_size or seq_len"}};
  }
  const double wanted = TokensOfRun(facts);
  if (facts.spec.data().on_exhausted() == v1::ON_EXHAUSTED_STOP && *have < wanted) {
    return {{files.field,
             absl::StrFormat("about %s tokens (%s steps need %s, and on_exhausted is stop)",
                             Number(std::round(*have)), Grouped(train.steps()),
                             Number(std::round(wanted))),
             "add text, train fewer steps, or set on_exhausted: repeat"}};
  }
  return {};
}

Problems TooSmall(const PreflightFacts& facts) {
  if (!MayLook(facts)) return {};
  Problems problems;
  for (const DataFiles& files : TrainingFiles(facts.spec.data())) {
    if (files.paths.empty()) continue;
    for (Problem& one : TooSmallFor(facts, files)) problems.push_back(std::move(one));
  }
  return problems;
}

constexpr double kManyEpochs = 10;

Problems Repeated(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (!MayLook(facts) || data.on_exhausted() == v1::ON_EXHAUSTED_STOP) return {};
  const std::vector<DataFiles> all = TrainingFiles(data);
  double weights = 0;
  for (const DataFiles& files : all) weights += files.weight;
  Problems problems;
  for (const DataFiles& files : all) {
    const double have = Tokens(facts, files).value_or(0);  // 0 also without files
    const double wanted = TokensOfRun(facts) * files.weight / weights;
    if (have <= 0 || !(wanted / have > kManyEpochs)) continue;
    problems.push_back({files.field,
                        absl::StrFormat("every token would be read about %s times (at most %s)",
                                        Number(std::round(wanted / have)), Number(kManyEpochs)),
                        "add text or train fewer steps"});
  }
  return problems;
}

Problems Synthetic(const PreflightFacts& facts) {
  if (!IsGenerated(facts.spec.data())) return {};
  return {
      {"data.source",
       absl::StrFormat("generates tokens (%s): the model learns no language", SourcesWithFiles()),
       "choose one of these sources and list its files"}};
}

Problems SyntheticFallback(const PreflightFacts& facts) {
  if (!facts.spec.data().allow_synthetic_fallback()) return {};
  return {{"data.allow_synthetic_fallback",
           "true (must be false): if the source fails, the run continues on generated tokens",
           "set allow_synthetic_fallback: false"}};
}

// Finds out which files have the same text: the same path, the same file, or the same content.
// Files are put into sets, not compared in pairs, so the work grows with their number. Contents
// are compared in files of up to 4 GiB.
class TextSets {
 public:
  explicit TextSets(const PreflightFacts& facts) : facts_(facts) {}

  void Add(const std::string& path) {
    paths_.emplace(Normal(path), path);
    const auto info = Look(path);
    if (!info) return;
    inodes_.emplace(std::pair(info->st_dev, info->st_ino), path);
    of_size_[info->st_size].unread.push_back(path);
  }

  // A file that was added and has the same text; empty if there is none.
  std::string Find(const std::string& path) {
    if (const auto same = paths_.find(Normal(path)); same != paths_.end()) return same->second;
    const auto info = Look(path);
    if (!info) return "";
    const auto inode = inodes_.find(std::pair(info->st_dev, info->st_ino));
    if (inode != inodes_.end()) return inode->second;
    const auto others = of_size_.find(info->st_size);
    if (others == of_size_.end() || info->st_size > kLargest) return "";
    OfSize& of_size = others->second;
    const int64_t start = std::min<int64_t>(kStart, info->st_size);
    for (const std::string& other : std::exchange(of_size.unread, {})) {
      of_size.of_start[HashOf(other, start)].unread.push_back(other);
    }
    const auto alike = of_size.of_start.find(HashOf(path, start));
    if (alike == of_size.of_start.end()) return "";
    OfStart& of_start = alike->second;
    for (const std::string& other : std::exchange(of_start.unread, {})) {
      of_start.of_content.emplace(HashOf(other, info->st_size), other);
    }
    const auto found = of_start.of_content.find(HashOf(path, info->st_size));
    return found == of_start.of_content.end() ? "" : found->second;
  }

  // Some contents were not compared, because that would take too long.
  bool gave_up() const { return left_ < 0; }

  static constexpr int64_t kMostBytes = int64_t{32} << 30;

 private:
  static constexpr int64_t kLargest = int64_t{4} << 30;
  static constexpr int64_t kStart = 64 << 10;
  // By the hash of their content, those that were read, which are those that may be the same.
  struct OfStart {
    std::vector<std::string> unread;
    std::unordered_map<std::string, std::string> of_content;
  };
  struct OfSize {
    std::vector<std::string> unread;
    std::unordered_map<std::string, OfStart> of_start;  // by the hash of their first bytes
  };

  static std::string Normal(const std::string& path) {
    return std::filesystem::path(path).lexically_normal().string();
  }

  // Nothing for what is no regular file here, or may not be read.
  std::optional<struct stat> Look(const std::string& path) const {
    struct stat info {};
    if (!MayLook(facts_) || facts_.abandoned()) return std::nullopt;
    const absl::StatusOr<Fd> fd = OpenJobFile(path);
    if (!fd.ok() || fstat(fd->get(), &info) != 0) return std::nullopt;
    return info;
  }

  // Of its first `bytes`. A file that cannot be read, or no longer has as many, is like no other.
  std::string HashOf(const std::string& path, int64_t bytes) {
    constexpr int64_t kBlock = 1 << 20;
    const absl::StatusOr<Fd> fd = OpenJobFile(path);
    if (!fd.ok()) return path;
    Sha256Sum sum;
    for (int64_t done = 0; done < bytes;) {
      const std::string block = ReadSome(fd->get(), done, std::min(bytes - done, kBlock));
      left_ -= std::ssize(block);
      if (block.empty() || left_ < 0 || facts_.abandoned()) return path;
      sum.Add(block);
      done += std::ssize(block);
    }
    return sum.Hex();
  }

  const PreflightFacts& facts_;
  std::unordered_map<std::string, std::string> paths_;
  std::map<std::pair<dev_t, ino_t>, std::string> inodes_;
  std::unordered_map<int64_t, OfSize> of_size_;
  int64_t left_ = kMostBytes;  // to read
};

// The training files that may have records of a validation set: not those whose filter excludes
// that of the set.
class TrainingBeside {
 public:
  explicit TrainingBeside(const PreflightFacts& facts)
      : facts_(facts), training_(TrainingFiles(facts.spec.data())) {}

  // Stays until the object ends.
  TextSets& Of(const DataFiles& validation) {
    std::vector<bool> which;
    for (const DataFiles& files : training_) {
      const bool excluded = files.filter != nullptr && validation.filter != nullptr &&
                            files.filter->Excludes(*validation.filter);
      which.push_back(!excluded);
    }
    const auto [sets, is_new] = sets_.try_emplace(which, facts_);
    for (size_t i = 0; is_new && i < which.size(); ++i) {
      if (!which[i]) continue;
      for (const NamedFile& train : FilesOf(facts_, {training_[i]})) sets->second.Add(train.path);
    }
    return sets->second;
  }

 private:
  const PreflightFacts& facts_;
  const std::vector<DataFiles> training_;
  std::map<std::vector<bool>, TextSets> sets_;  // by which of the training files they have
};

// What to do about a file of `files` that is trained on. data.val_path is under the filter of
// data.path, so that a filter cannot divide their records; a set, and a source of a mixture, has
// its own.
std::string DisjointFix(const v1::DataSpec& data, const DataFiles& files) {
  const bool mix = !data.mix().empty(), named = !files.name.empty();
  const std::string except = mix ? "except of the sources" : "data.except";
  std::string records;
  if (DataSourceInfoOf(files.source).has_fields() && (mix || named)) {
    records = files.filter != nullptr
                  ? absl::StrCat(", leave their records out of training with ", except)
                  : absl::StrCat(", choose records with ", named ? "data.val_where" : "data.where",
                                 " and leave these out of training with ", except);
  }
  return absl::StrCat("use validation files that are not in ", mix ? "data.mix" : "data.path",
                      records, ", or ",
                      named ? "remove the set" : "set data.val_fraction in place of data.val_path");
}

Problems ValNotDisjoint(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  std::vector<DataFiles> validation = ValidationFiles(data);
  for (DataFiles& files : NamedValidationFiles(data)) validation.push_back(std::move(files));
  if (validation.empty()) return {};
  Problems problems;
  bool gave_up = false;
  TrainingBeside beside(facts);
  for (const DataFiles& files : validation) {
    TextSets& training = beside.Of(files);
    for (const NamedFile& val : FilesOf(facts, {files})) {
      const std::string train = training.Find(val.path);
      if (train.empty()) continue;
      problems.push_back({val.field,
                          absl::StrFormat("%s is also used for training (%s)", val.path, train),
                          DisjointFix(data, files)});
    }
    gave_up = gave_up || training.gave_up();
  }
  if (gave_up) {
    problems.push_back(
        {validation.front().field,
         absl::StrFormat("more than %d GiB would have to be read to compare files of "
                         "the same size",
                         TextSets::kMostBytes >> 30),
         "use fewer validation files"});
  }
  return problems;
}

Problems ValAmbiguous(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (data.val_path().empty() || data.val_fraction() == 0) return {};
  return {{"data.val_fraction",
           absl::StrFormat("%g, but val_path is set too (only one of them may be)",
                           data.val_fraction()),
           "remove one"}};
}

// Whether data.val_fraction holds out some of these files.
bool HoldsOut(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  return MayLook(facts) && data.val_path().empty() && data.val_fraction() > 0;
}

// The most tokens that can be made of all training files, in which a token has at least a byte;
// nullopt if they are not known.
std::optional<int64_t> MostTokens(const PreflightFacts& facts) {
  double tokens = 0;
  for (const DataFiles& files : TrainingFiles(facts.spec.data())) {
    const std::optional<double> bytes = TextBytes(facts, {files});
    if (!bytes) return std::nullopt;
    tokens += *bytes + PreparedTokens(facts, files);
  }
  if (tokens < 1) return std::nullopt;
  return static_cast<int64_t>(tokens);
}

// Roughly the tokens of all training files; nullopt if they are not known.
std::optional<int64_t> TrainingTokens(const PreflightFacts& facts) {
  double tokens = 0;
  for (const DataFiles& files : TrainingFiles(facts.spec.data())) {
    const std::optional<double> some = Tokens(facts, files);
    if (!some) return std::nullopt;
    tokens += *some;
  }
  if (tokens < 1) return std::nullopt;
  return static_cast<int64_t>(tokens);
}

// Lines of a file that are not blank; `most` if there are more, or more bytes than `budget`, from
// which those that were read are taken.
int64_t CountLines(const std::string& path, int64_t most, int64_t* budget) {
  const absl::StatusOr<Fd> file = OpenJobFile(path);
  constexpr int64_t kBlock = 1 << 20;
  int64_t lines = 0;
  bool blank = true;
  for (int64_t at = 0; file.ok() && lines<most&& * budget> 0; at += kBlock) {
    const std::string block = ReadSome(file->get(), at, kBlock);
    if (block.empty()) break;
    *budget -= std::ssize(block);
    for (const char c : block) {
      if (c == '\n') lines += blank ? 0 : 1;
      blank = c == '\n' || (blank && (c == ' ' || c == '\t' || c == '\r'));
    }
  }
  if (*budget <= 0) return most;
  return std::min(most, lines + (blank ? 0 : 1));
}

// Documents of the training files; `most` if there are more. nullopt if they are not counted here,
// or if one of them can be divided to hold out a part.
std::optional<int64_t> WholeDocuments(const PreflightFacts& facts, int64_t most) {
  int64_t documents = 0;
  int64_t budget = 64 << 20;  // bytes to read
  for (const NamedFile& file : FilesOf(facts, TrainingFiles(facts.spec.data()))) {
    if (documents >= most || facts.abandoned()) return most;
    if (file.prepared()) {
      const auto manifest = ReadPrepared(file.path);
      if (!manifest.ok() || HasPassages(manifest->source(), manifest->separator())) {
        return std::nullopt;
      }
      documents += manifest->documents();
      continue;
    }
    if (file.source->format != DocumentFormat::kLines || file.filter != nullptr ||
        IsCompressed(file.path) || IsUrl(file.path) || ReadFault(file.path).has_value()) {
      return std::nullopt;
    }
    documents += CountLines(file.path, most - documents, &budget);
  }
  return std::min(documents, most);
}

// For HeldOutTokensOf(): of conversations any number of tokens can be validated.
int32_t LeastHeldOut(const PreflightFacts& facts) {
  return LearnsAnswers(facts.spec.data()) ? 0 : facts.spec.train().seq_len();
}

constexpr char kNameValFiles[] = "name validation files in data.val_path";

Problems ValTooSmall(const PreflightFacts& facts) {
  if (!HoldsOut(facts)) return {};
  const double fraction = facts.spec.data().val_fraction();
  const std::optional<int64_t> tokens = MostTokens(facts);
  const int64_t sequence = HeldOutTokensOf(0, fraction, LeastHeldOut(facts)).sequence;
  if (tokens && *tokens < 2 * sequence) {
    return {{"data.val_fraction",
             absl::StrFormat("%g of at most %s tokens (training and validation take a sequence of "
                             "%s each)",
                             fraction, Grouped(*tokens), Grouped(sequence)),
             absl::StrCat("add text, use a smaller seq_len, or ", kNameValFiles)}};
  }
  if (facts.spec.data().stream() || WholeDocuments(facts, 2) != 1) return {};
  return {{"data.val_fraction",
           absl::StrFormat("%g of one document (training and validation take one each)", fraction),
           absl::StrCat("add documents, or ", kNameValFiles)}};
}

// The smallest number of two digits that is not below `value`.
double RoundedUp(double value) {
  const double unit = std::pow(10, std::floor(std::log10(value)) - 1);
  return std::ceil(value / unit) * unit;
}

// At most as many documents as are counted one by one.
int64_t Documents(double count) { return static_cast<int64_t>(std::min(1e9, std::ceil(count))); }

// A stream does not know its share: it holds out what the hashes of its documents say.
Problems StreamShare(const PreflightFacts& facts) {
  constexpr double kEnough = 10;  // of them, three more or less are usual
  const v1::DataSpec& data = facts.spec.data();
  const int64_t enough = Documents(kEnough / data.val_fraction());
  const std::vector<DataFiles> training = TrainingFiles(data);
  std::optional<int64_t> documents = WholeDocuments(facts, enough);
  const bool texts = std::ranges::all_of(training, [](const DataFiles& files) {
    return DataSourceInfoOf(files.source).format == DocumentFormat::kText;
  });
  if (const auto bytes = TextBytes(facts, training); texts && bytes) {
    documents = Documents(*bytes / kPassageBytes);
  }
  if (!documents || *documents >= enough) return {};
  return {{"data.val_fraction",
           absl::StrFormat("%g of about %s (a stream holds out whole ones by their hashes, and "
                           "comes near its share with %s)",
                           data.val_fraction(), Count(*documents, texts ? "passage" : "document"),
                           Grouped(enough)),
           absl::StrCat("remove data.stream, add data, or ", kNameValFiles)}};
}

Problems ValShare(const PreflightFacts& facts) {
  if (!HoldsOut(facts)) return {};
  if (facts.spec.data().stream()) return StreamShare(facts);
  const double fraction = facts.spec.data().val_fraction();
  // With as many documents, one of them is not much more than the share.
  const int64_t enough = Documents(1 / (kHeldOutFactor * fraction));
  const std::optional<int64_t> documents = WholeDocuments(facts, enough);
  if (documents && *documents > 1 && *documents < enough) {
    const double one = 1.0 / static_cast<double>(*documents);
    return {{"data.val_fraction",
             absl::StrFormat("%g of %s (whole ones are held out, so about %.2g %% of the data)",
                             fraction, Count(*documents, "document"), 100 * one),
             absl::StrFormat("set val_fraction: %g, add documents, or %s",
                             std::min(0.5, RoundedUp(one)), kNameValFiles)}};
  }
  const std::optional<int64_t> tokens = TrainingTokens(facts);
  if (!tokens) return {};
  const HeldOutTokens share = HeldOutTokensOf(*tokens, fraction, LeastHeldOut(facts));
  if (!share.more_than_asked() || *tokens < 2 * share.sequence) return {};
  const double held_out = static_cast<double>(share.wanted) / static_cast<double>(*tokens);
  return {{"data.val_fraction",
           absl::StrFormat("%g of about %s tokens is %s (at least one sequence of %s is held out, "
                           "%.2g %% of the data)",
                           fraction, Grouped(*tokens), Grouped(std::llround(share.asked)),
                           Grouped(share.sequence), 100 * held_out),
           absl::StrFormat("set val_fraction: %g, add text, use a smaller seq_len, or %s",
                           std::min(0.5, RoundedUp(held_out)), kNameValFiles)}};
}

Problems EvalWithoutData(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (facts.spec.train().eval_every() == 0 || IsGenerated(data)) return {};
  if (!data.val_path().empty() || data.val_fraction() > 0) return {};
  return {{"train.eval_every", "validation is on, but there is no validation data",
           "set data.val_path or data.val_fraction"}};
}

Problems EvalEveryTooLarge(const PreflightFacts& facts) {
  const auto& train = facts.spec.train();
  if (train.eval_every() <= train.steps()) return {};
  return {{"train.eval_every",
           absl::StrFormat("%d (at most steps = %d): the run validates only at its end",
                           train.eval_every(), train.steps()),
           absl::StrFormat("set eval_every: %d", std::max<int64_t>(1, train.steps() / 10))}};
}

Problems EvalOff(const PreflightFacts& facts) {
  if (facts.spec.train().eval_every() > 0) return {};
  return {{"train.eval_every",
           "0 (more than 0): without validation, overfitting and bad data go unnoticed",
           absl::StrFormat("set eval_every: %d",
                           std::max<int64_t>(1, facts.spec.train().steps() / 50))}};
}

constexpr PreflightRule kCorpusRules[] = {
    {"DATA_TOO_SMALL", "fewer tokens than one batch, or than the whole run with on_exhausted: stop",
     kError, kError, true, kSizes, TooSmall},
    {"DATA_REPEATED", "the run reads every token more than ten times", kWarning, kInfo, true,
     kSizes, Repeated},
    {"DATA_SYNTHETIC", "the source generates tokens", kError, kInfo, true, kNothing, Synthetic},
    {"DATA_SYNTHETIC_FALLBACK", "generated tokens replace a source that fails", kError, kWarning,
     true, kNothing, SyntheticFallback},
    {"VAL_NOT_DISJOINT", "a validation file is also used for training", kError, kError, true,
     kNothing, ValNotDisjoint},
    {"VAL_AMBIGUOUS", "val_path and val_fraction are both set", kError, kError, false, kNothing,
     ValAmbiguous},
    {"VAL_TOO_SMALL", "val_fraction leaves no sequence for validation or for training", kError,
     kError, true, kSizes, ValTooSmall},
    {"VAL_SHARE", "val_fraction holds out much more than it says, because the data is small",
     kWarning, kInfo, true, kSizes, ValShare},
    {"EVAL_WITHOUT_DATA", "validation is on, but there is no validation data", kError, kError,
     false, kNothing, EvalWithoutData},
    {"EVAL_EVERY_TOO_LARGE", "eval_every is more than steps", kWarning, kWarning, true, kNothing,
     EvalEveryTooLarge},
    {"EVAL_OFF", "validation is off", kWarning, kOff, true, kNothing, EvalOff},
};

}  // namespace

std::span<const PreflightRule> CorpusRules() { return kCorpusRules; }

namespace {

// Of a rank that reads its training data in passing: a window of rows of each source, and what a
// reader holds: up to five blocks of a URL or pages of a file. Of the files only those for
// validation are held.
int64_t StreamMemory(const PreflightFacts& facts) {
  constexpr double kReaderBytes = 24 << 20;
  // Beside a row's tokens: its place in the window, in its order and on the heap. Measured: 97.
  constexpr double kRowBytes = 100;
  const auto& data = facts.spec.data();
  const double row = (facts.spec.train().seq_len() + 1.0) * TokenBytesOf(facts) + kRowBytes;
  const double sources = std::max(1, data.mix_size());
  double bytes = sources * (data.shuffle_window() * row + kReaderBytes);
  if (MayLook(facts)) {
    std::vector<DataFiles> validation = ValidationFiles(data);
    for (DataFiles& files : NamedValidationFiles(data)) validation.push_back(std::move(files));
    const double text = TextBytes(facts, validation).value_or(0);
    bytes += kHostBytesPerTextByte * std::min<double>(text, kLargeDataBytes);
  }
  return static_cast<int64_t>(bytes);
}

int64_t MeasureCorpusMemory(const PreflightFacts& facts) {
  if (facts.spec.data().stream()) return StreamMemory(facts);
  if (!MayLook(facts)) return 0;
  const std::optional<double> bytes = TextBytes(facts, AllDataFiles(facts.spec.data()));
  if (!bytes) return 0;  // DATA_UNREADABLE reports it
  const double held = IsMapped(facts) ? std::min<double>(*bytes, kLargeDataBytes) : *bytes;
  return static_cast<int64_t>(kHostBytesPerTextByte * held);
}

}  // namespace

int64_t CorpusMemory(const PreflightFacts& facts) {
  std::optional<int64_t>& measured = *facts.corpus_memory;
  if (!measured.has_value()) measured = MeasureCorpusMemory(facts);
  return *measured;
}

}  // namespace nsa
