// `notes_writer FOLDER NOTES` replaces the file `note` as the agent does with its own, and appends
// to `journal` as a worker does, and says how often it has. A test cuts its power.
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
    // Of growing length, so that a mixture of two shows.
    if (!nsa::WriteFileAtomically(folder / "note", std::string(i, '0' + i % 10)).ok()) return 1;
    nsa::Say(absl::StrCat("note ", i));
  }
}
