/* Faults in the file system, for one folder of one process: preload it, then arm it from within.
 *
 *   gcc -O1 -shared -fPIC -o shim.so shim.c -ldl          LD_PRELOAD=./shim.so program
 *
 * fault_arm(root, n, action, error): at the n-th change below `root`: action 1 fails it and all after it with `error`,
 * 4 it alone, 2 kills the process before it, 3 after it; 0 only counts. fault_count(): changes since. fault_record(fd): write down
 * every change to fd, for replaying power cuts; fault_mark(number): put a mark among them. A change is a write, a sync,
 * a truncation, a creation, a renaming, a link or an unlinking.
 *
 * A record: kind (1 byte), length of the name (4), offset or number (8), length of the content (4), name, content.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[4096];
static long count, target;
static int armed, action, fault_errno, record_fd = -1;

void fault_arm(const char *folder, long n, int what, int error) {
  strncpy(root, folder, sizeof root - 1);
  count = 0, target = n, action = what, fault_errno = error, armed = 1;
}
void fault_disarm(void) { armed = 0; }
long fault_count(void) { return count; }
void fault_record(int fd) { record_fd = fd; }

static void put(char kind, const char *name, int64_t number, const void *content, uint32_t length) {
  if (record_fd < 0) return;
  uint32_t name_length = strlen(name);
  char head[17];
  head[0] = kind;
  memcpy(head + 1, &name_length, 4), memcpy(head + 5, &number, 8), memcpy(head + 13, &length, 4);
  struct iovec parts[3] = {{head, 17}, {(void *)name, name_length}, {(void *)content, length}};
  syscall(SYS_writev, record_fd, parts, 3);
}
void fault_mark(int64_t number) { put('M', "", number, "", 0); }

static int below(const char *path) {
  size_t length = strlen(root);
  return armed && path && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}
static const char *name_of(int fd) {
  static __thread char name[4096];
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = syscall(SYS_readlink, link, name, sizeof name - 1);
  name[length > 0 ? length : 0] = 0;
  return name;
}
/* Whether the change may be made; kills or fails as armed. */
static int before(void) {
  long now = __sync_add_and_fetch(&count, 1);
  if (action == 2 && now >= target) syscall(SYS_kill, getpid(), SIGKILL);
  if ((action == 1 && now >= target) || (action == 4 && now == target)) { errno = fault_errno; return 0; }
  return 1;
}
static void after(void) {
  if (action == 3 && count >= target) syscall(SYS_kill, getpid(), SIGKILL);
}
#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, name)

#define WRITER(NAME, TYPE, ARGS, CALL, OFFSET) \
  TYPE NAME ARGS { \
    REAL(TYPE, #NAME, int, ...); \
    if (!armed) return ((TYPE(*) ARGS)real) CALL; \
    char name[4096]; \
    strcpy(name, name_of(fd)); \
    if (!below(name)) return ((TYPE(*) ARGS)real) CALL; \
    if (!before()) return -1; \
    int64_t at = OFFSET; \
    TYPE done = ((TYPE(*) ARGS)real) CALL; \
    if (done > 0) put('W', name, at, buffer, done); \
    after(); \
    return done; \
  }
static int64_t place(int fd) {
  if (fcntl(fd, F_GETFL) & O_APPEND) { struct stat s; fstat(fd, &s); return s.st_size; }
  return lseek(fd, 0, SEEK_CUR);
}
WRITER(write, ssize_t, (int fd, const void *buffer, size_t size), (fd, buffer, size), place(fd))
WRITER(pwrite, ssize_t, (int fd, const void *buffer, size_t size, off_t at_), (fd, buffer, size, at_), at_)
WRITER(pwrite64, ssize_t, (int fd, const void *buffer, size_t size, off64_t at_), (fd, buffer, size, at_), at_)

#define ON_FILE(NAME, ARGS, CALL, KIND, NUMBER) \
  int NAME ARGS { \
    REAL(int, #NAME, int, ...); \
    if (!armed) return ((int(*) ARGS)real) CALL; \
    char name[4096]; \
    strcpy(name, name_of(fd)); \
    if (!below(name)) return ((int(*) ARGS)real) CALL; \
    if (!before()) return -1; \
    int done = ((int(*) ARGS)real) CALL; \
    if (!done) put(KIND, name, NUMBER, "", 0); \
    after(); \
    return done; \
  }
ON_FILE(fsync, (int fd), (fd), 'S', 0)
ON_FILE(fdatasync, (int fd), (fd), 'S', 0)
ON_FILE(ftruncate, (int fd, off_t size), (fd, size), 'T', size)
ON_FILE(ftruncate64, (int fd, off64_t size), (fd, size), 'T', size)

#define ON_NAMES(NAME, KIND) \
  int NAME(const char *from, const char *to) { \
    REAL(int, #NAME, const char *, const char *); \
    if (!below(from) && !below(to)) return real(from, to); \
    if (!before()) return -1; \
    int done = real(from, to); \
    if (!done) put(KIND, from, 0, to, strlen(to)); \
    after(); \
    return done; \
  }
ON_NAMES(rename, 'R')
ON_NAMES(link, 'L')

#define ON_NAME(NAME, ARGS, CALL, KIND) \
  int NAME ARGS { \
    REAL(int, #NAME, const char *, ...); \
    if (!below(path)) return ((int(*) ARGS)real) CALL; \
    if (!before()) return -1; \
    int done = ((int(*) ARGS)real) CALL; \
    if (!done) put(KIND, path, 0, "", 0); \
    after(); \
    return done; \
  }
ON_NAME(unlink, (const char *path), (path), 'U')
ON_NAME(rmdir, (const char *path), (path), 'D')
ON_NAME(mkdir, (const char *path, mode_t mode), (path, mode), 'F')

#define OPENER(NAME) \
  int NAME(const char *path, int flags, ...) { \
    REAL(int, #NAME, const char *, int, ...); \
    va_list rest; \
    va_start(rest, flags); \
    int mode = flags & O_CREAT ? va_arg(rest, int) : 0; \
    va_end(rest); \
    struct stat s; \
    int is_new = below(path) && flags & O_CREAT && stat(path, &s); \
    int cuts = below(path) && flags & O_TRUNC && !is_new; \
    if ((is_new || cuts) && !before()) return -1; \
    int fd = real(path, flags, mode); \
    if (fd >= 0 && is_new) put('C', path, 0, "", 0); \
    if (fd >= 0 && cuts) put('T', path, 0, "", 0); \
    if (is_new || cuts) after(); \
    return fd; \
  }
OPENER(open)
OPENER(open64)
