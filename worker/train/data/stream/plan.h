// What a stream reads (data.stream): the files of each source, and which of their documents are for
// training.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/data/data_files.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/encoder.h"
#include "worker/train/data/fingerprint.h"
#include "worker/train/data/read/document_hash.h"
#include "worker/train/data/read/documents.h"
#include "worker/train/data/read/source_files.h"

namespace nsa::train {

// A file, and what it was when the worker started.
struct StreamFile {
  std::string path;
  // Size and time of change of a local file. Empty for a URL, whose version Remote compares.
  std::string state;
};

// One of data.mix, or data.path.
struct StreamSource {
  DataFiles files;
  std::vector<StreamFile> listed;  // in the order of the job file
};

// Immutable; threads may share one.
struct StreamPlan {
  // What becomes of a document.
  enum class Fate {
    kTrains,
    kHeldOut,  // data.val_fraction
    kDropped,  // a copy of a document of val_path or data.val
  };
  Fate FateOf(const DocumentHash& hash) const;

  // How a file of a source is read. A text is always divided into passages, so that none is held
  // whole.
  DocumentOptions OptionsFor(const StreamSource& source, const StreamFile& file) const;

  std::vector<StreamSource> sources;
  std::shared_ptr<const DocumentEncoder> encoder;
  std::set<DocumentHash> validation;  // documents of val_path and data.val
  double val_fraction = 0;
};

// Lists the files of the training data and adds them to the fingerprint: names and sizes, of URLs
// also ETags, filters, and the size of the window, but not the content, which is not read. The
// errors of SourceFiles; InvalidArgument for a folder of prepared data.
absl::StatusOr<StreamPlan> PlanStream(const v1::DataSpec& data, const SourceFiles& files,
                                      Fingerprint* fingerprint);

// FailedPrecondition if a local file is not what it was when the worker started.
absl::Status CheckUnchanged(const StreamFile& file);

}  // namespace nsa::train
