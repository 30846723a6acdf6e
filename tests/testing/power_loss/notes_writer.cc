// `notes_writer FOLDER NOTES` replaces the file `note` as the agent replaces its own files, appends
// to `journal` as a worker does, and prints how often it has done so. A test simulates a power
// loss.
#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/run/atomic_file.h"
#include "common/run/journal.h"
#include "tests/testing/say.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::filesystem::path folder = argv[1];
  auto journal = nsa::JournalWriter::Create(folder / "journal");
  if (!journal.ok()) return 1;
  for (int i = 1; i <= std::atoi(argv[2]); ++i) {
    nsa::v1::WorkerRecord record;
    record.mutable_step()->set_step(i);
    if (!(*journal)->Append(record).ok()) return 1;
    // The length grows, so that a mixture of two versions is noticed.
    if (!nsa::WriteFileAtomically(folder / "note", std::string(i, '0' + i % 10)).ok()) return 1;
    nsa::Say(absl::StrCat("note ", i));
  }
}
