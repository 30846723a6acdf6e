// A corpus: the documents of a job's files as tokens, divided into training and validation. No
// document is in both sets; of a text file at most one passage is divided between them. The tokens
// of small data are held in memory. Those of large data are made once for the machine and mapped
// (prepared/token_cache.h), and those of prepared data are mapped too (prepared/folder.h); both are
// the tokens of the files that they were made of.
//
// With val_path, the documents of those files are for validation, and training documents with the
// same content are dropped. With val_fraction f, documents whose content hash (XXH3, as a fraction
// of 2^64) is below f are for validation. If these are not about the share f of the tokens, others
// are held out (held_out_balance.h), but at least a sequence. Copies of a document have the
// same hash, so all of them are in the same set. With val_fraction, text files are divided into
// passages (documents.h); otherwise a whole file would be one document. The documents of the sets
// of data.val are for validation, as those of val_path. With data.mix each source has a store of
// its own; what is dropped or held out is decided by the same rules for all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/data/cache/cache_options.h"
#include "worker/train/data/fingerprint.h"
#include "worker/train/data/remote/progress.h"
#include "worker/train/data/rows.h"
#include "worker/train/data/tokens/token_store.h"

namespace nsa::train {

struct CorpusNote {
  Reason reason;
  std::string text;
};

// What the files contain.
struct CorpusInfo {
  v1::DataSource source = v1::DATA_SOURCE_UNSPECIFIED;
  int64_t documents = 0;  // for training
  int64_t tokens = 0;     // for training, separators included
  int64_t rows = 0;       // of an epoch
  int64_t val_documents = 0;
  int64_t val_tokens = 0;
  int64_t val_rows = 0;
  int64_t dropped_documents = 0;  // training documents that are copies of validation documents
  int64_t null_rows = 0;          // lines and rows without a text
  int64_t empty_files = 0;        // files of 0 bytes
  int64_t inner_separators = 0;   // separator tokens inside documents; each splits its document
  double load_seconds = 0;
  // Of the files and of what is held out, 32 hexadecimal digits.
  std::string fingerprint;
  // The same if the hashes alone decide what is held out; equal unless others are held out.
  std::string fingerprint_by_hash;
  // What a new run reports, because preflight finds it only in some data: VAL_SHARE (not of a
  // stream, whose share nobody has counted) and DATA_NOT_UTF8.
  std::vector<CorpusNote> notes;
  std::vector<v1::DataWarning> warnings;  // about data.where and data.except
  std::vector<DataPart> parts;            // what it is made of, to say what differs
  // How conversations fill their rows (data.loss_on: assistant).
  std::optional<v1::PackingSummary> packing = {};
};

// The same for records and people.
v1::CorpusSummary SummaryOf(const CorpusInfo& info);

// The documents of one source.
struct CorpusPart {
  std::string name;  // data.mix[].name; empty without a mixture
  v1::DataSource source = v1::DATA_SOURCE_UNSPECIFIED;
  double weight = 1;
  std::shared_ptr<TokenStore> train;
  std::shared_ptr<TokenStore> val;  // documents held out; of the first part also those of val_path
};

// A set of data.val.
struct CorpusSet {
  std::string name;
  std::shared_ptr<TokenStore> tokens;
};

struct StreamPlan;

struct Corpus {
  std::vector<CorpusPart> parts;  // one, or with data.mix one for each source
  std::vector<CorpusSet> sets;    // in the order of their names
  int32_t separator = 0;          // kNoSeparator if documents follow each other without one
  CorpusInfo info;                // without rows and val_rows, which depend on the row length
  // With data.stream: how the training data is read. Then `parts` have no training tokens, and
  // `info` counts validation only.
  std::shared_ptr<const StreamPlan> stream;
};

// What the validation needs of the held-out documents.
struct HeldOutNeed {
  int64_t rows = 0;  // of a stream; 0: it validates on none
  int32_t seq_len = 0;
  // Of a checkpoint. If it is CorpusInfo.fingerprint_by_hash, the hashes alone decide: the
  // checkpoint was trained with this division, by a worker that knew no other.
  std::string fingerprint = {};
};

// Reads the files of `data` on a separate thread. DeadlineExceeded with Reason::kDataStalled if
// that thread makes no progress for `stall_timeout`; the thread is then left behind, because it may
// hang in the kernel. Otherwise the errors of DocumentReader, and InvalidArgument for a token that
// is not below `vocab`, a wrong data.separator, or when one side has no document. `on_progress` may
// be empty; it is called on the caller's thread about once a second while there is progress.
// `cancelled` may be empty; it is called ten times a second on the caller's thread. Cancelled with
// Reason::kStopped soon after it returns true. `remote` reads URLs; without it they are errors.
// `cache` says where the tokens of large data are kept; by default nowhere. With data.stream the
// training files are listed, but not read, except for the documents of `need`.
absl::StatusOr<Corpus> LoadCorpus(const v1::DataSpec& data, int32_t vocab,
                                  absl::Duration stall_timeout,
                                  const std::function<void()>& on_progress = {},
                                  const std::function<bool()>& cancelled = {},
                                  std::shared_ptr<Remote> remote = nullptr,
                                  const TokenCacheOptions& cache = {},
                                  const HeldOutNeed& need = {});

// Row i is tokens [i·S, i·S + S] of a store; with a shift of s, tokens [s + i·S, s + i·S + S],
// where the first token follows the last. So every shift gives the same number of rows, each token
// is predicted at most once, and the fewer than S tokens that are left out are others for each
// shift.
class CorpusRows final : public RowSource {
 public:
  CorpusRows(std::shared_ptr<const TokenStore> store, int32_t seq_len, int32_t separator,
             v1::DataSource source)
      : store_(std::move(store)), seq_len_(seq_len), separator_(separator), source_(source) {}

  // 0 if there are fewer than S + 1 tokens. The loader refuses that.
  int64_t rows() const override {
    return store_->size() == 0 ? 0 : (store_->size() - 1) / seq_len_;
  }
  int32_t separator() const override { return separator_; }
  v1::DataSource source() const override { return source_; }
  absl::Status Read(int64_t row, std::span<int32_t> tokens) override {
    return ReadShifted(row, 0, tokens);
  }
  absl::Status ReadShifted(int64_t row, int64_t shift, std::span<int32_t> tokens) override {
    const int64_t begin = (row * seq_len_ + shift) % store_->size();
    const int64_t whole = std::min(static_cast<int64_t>(tokens.size()), store_->size() - begin);
    NSA_RETURN_IF_ERROR(store_->Copy(begin, tokens.first(whole)));
    return store_->Copy(0, tokens.subspan(whole));
  }

 private:
  const std::shared_ptr<const TokenStore> store_;
  const int32_t seq_len_;
  const int32_t separator_;
  const v1::DataSource source_;
};

}  // namespace nsa::train
