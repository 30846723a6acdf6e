// A hash of all data that was read, and of its parts, by which machines find out whether they have
// read the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/job/data/record_filter.h"
#include "worker/train/data/read/document_hash.h"

struct XXH3_state_s;

namespace nsa::train {

// A file of the data, or the documents of files that were read one after another.
struct DataPart {
  std::string name;     // "/data/books.jsonl", "/data/a.txt and 2 other files"
  std::string content;  // "1234 bytes", "documents with the hash 0123456789abcdef"
};

// A running hash of everything that was read. Not thread-safe.
class Fingerprint {
 public:
  Fingerprint();
  ~Fingerprint();
  Fingerprint(const Fingerprint&) = delete;
  Fingerprint& operator=(const Fingerprint&) = delete;

  // Adds a file's name and size: not its folder or host, so that a copy is the same data. `shown`:
  // what people know it as. `version`: what else identifies its content, if that is not read.
  void AddFile(const std::string& path, int64_t size, const std::string& shown,
               const std::string& version = "");

  // The files are read in passing, with windows of so many sequences.
  void AddStream(int64_t window);

  // The records of the files that follow are read in passing through a filter.
  void AddFilter(const RecordFilter& filter);

  // So many tokens are held out that the hashes of the documents do not select.
  void AddHeldOut(int64_t tokens);

  // The documents that follow are of these files.
  void Begin(const std::vector<std::string>& paths);
  void Add(const DocumentHash& hash);

  // Of everything so far: 32 hexadecimal digits. Ends the documents of the last files.
  std::string Finish();

  // All parts, in the order in which they were read. After Finish().
  std::vector<DataPart>& parts() { return parts_; }

 private:
  void EndDocuments();

  XXH3_state_s* const all_;
  XXH3_state_s* const documents_;  // of the present files
  std::string name_;               // of the present files; empty: none
  std::vector<DataPart> parts_;
};

}  // namespace nsa::train
