#include "client/commands/commands.h"

namespace nsa::client {

// One row for each command, in the order of `nsactl --help`. A row Name stands for the function
// AddName(), which the command's own file defines.
#define NSACTL_COMMANDS(ROW) \
  ROW(Init)                  \
  ROW(Submit)                \
  ROW(Validate)              \
  ROW(Data)                  \
  ROW(List)                  \
  ROW(Describe)              \
  ROW(Watch)                 \
  ROW(Top)                   \
  ROW(Logs)                  \
  ROW(Events)                \
  ROW(Metrics)               \
  ROW(Samples)               \
  ROW(Plot)                  \
  ROW(Compare)               \
  ROW(Bisect)                \
  ROW(Replay)                \
  ROW(Report)                \
  ROW(Sweep)                 \
  ROW(Stop)                  \
  ROW(Resume)                \
  ROW(Fork)                  \
  ROW(Delete)                \
  ROW(Label)                 \
  ROW(Note)                  \
  ROW(Mute)                  \
  ROW(Unmute)                \
  ROW(DumpStack)             \
  ROW(Profile)               \
  ROW(Checkpoint)            \
  ROW(Export)                \
  ROW(Import)                \
  ROW(Generate)              \
  ROW(Chat)                  \
  ROW(Serve)                 \
  ROW(Eval)                  \
  ROW(Needle)                \
  ROW(Nodes)                 \
  ROW(Node)                  \
  ROW(Quota)                 \
  ROW(Token)                 \
  ROW(Audit)                 \
  ROW(Admin)                 \
  ROW(Doctor)                \
  ROW(Version)               \
  ROW(Context)               \
  ROW(Completion)

#define NSACTL_DECLARE(name) void Add##name(Cli* cli);
NSACTL_COMMANDS(NSACTL_DECLARE)
#undef NSACTL_DECLARE

void AddCommands(Cli* cli) {
#define NSACTL_ADD(name) Add##name(cli);
  NSACTL_COMMANDS(NSACTL_ADD)
#undef NSACTL_ADD
}

}  // namespace nsa::client
