/* Stands in for libc's calls on files below SHIM_ROOT, by LD_PRELOAD: the call number SHIM_AT fails as
 * SHIM_KIND says. Every call that was failed is a line of the file SHIM_LOG; the number of calls is
 * written to SHIM_COUNT at the end. SHIM_PAUSE: microseconds before every call. SHIM_OLD: the file system
 * does not have RENAME_NOREPLACE, as NFS. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

static void put(const char *path, const char *text) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0) return;
    (void)!syscall(SYS_write, fd, text, strlen(text));
    syscall(SYS_close, fd);
}

__attribute__((destructor)) static void count(void) {
    char text[32];
    if (!*setting("SHIM_COUNT")) return;
    snprintf(text, sizeof text, "%ld\n", atomic_load(&calls));
    put(setting("SHIM_COUNT"), text);
}

static int below(const char *path) {
    const char *root = setting("SHIM_ROOT");
    size_t len = strlen(root);
    return len && !strncmp(path, root, len) && (path[len] == '/' || !path[len]);
}

static int fd_below(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 0) return 0;
    path[len] = 0;
    return below(path);
}

static int path_below(int dir, const char *path) {
    char cwd[PATH_MAX];
    if (path[0] == '/') return below(path);
    if (dir != AT_FDCWD) return fd_below(dir);
    return getcwd(cwd, sizeof cwd) && below(cwd);
}

enum { OPEN, MAKE, WRITE, SYNC, RENAME, REMOVE, CLOSE, LOCK, CHANGE };
static const char *const NAMES[] = {"open", "make", "write", "sync", "rename", "remove", "close", "lock", "open"};

/* The error to fail a call with; 0: let it through; -1: write less than was asked. */
static int fault(int is_ours, int what) {
    if (!is_ours) return 0;
    const char *kind = setting("SHIM_KIND");
    long at = atol(setting("SHIM_AT")), now = atomic_fetch_add(&calls, 1) + 1, pause = atol(setting("SHIM_PAUSE"));
    if (pause) usleep(pause);
    if (!at || now < at) return 0;
    int takes_room = what == MAKE || what == WRITE || what == SYNC, error = 0;
    int changes = takes_room || what == RENAME || what == REMOVE || what == CHANGE;
    if (!strcmp(kind, "gone")) error = EIO;
    else if (!strcmp(kind, "readonly")) error = changes ? EROFS : 0;
    else if (!strcmp(kind, "full")) error = takes_room ? ENOSPC : 0;
    else if (now > at) return 0;
    else if (!strcmp(kind, "kill")) raise(SIGKILL);
    else if (!strcmp(kind, "enospc")) error = ENOSPC;
    else if (!strcmp(kind, "eio")) error = EIO;
    else if (!strcmp(kind, "eintr")) error = EINTR;
    else if (!strcmp(kind, "short")) error = what == WRITE ? -1 : 0;
    if (error > 0) {
        char line[32];
        snprintf(line, sizeof line, "%s\n", NAMES[what]);
        put(setting("SHIM_LOG"), line);
    }
    return error;
}

#define FAIL(ours, what) \
    do { int error_ = fault(ours, what); if (error_ > 0) { errno = error_; return -1; } } while (0)

static int opened(int dir, const char *path, int flags, mode_t mode) {
    int changes = (flags & O_ACCMODE) != O_RDONLY;
    FAIL(path_below(dir, path), flags & O_CREAT ? MAKE : changes ? CHANGE : OPEN);
    return syscall(SYS_openat, dir, path, flags, mode);
}

#define MODE(flags, last) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, last); mode = va_arg(rest, int); va_end(rest); }

int open(const char *path, int flags, ...) { MODE(flags, flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags, flags) return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE(flags, flags) return opened(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE(flags, flags) return opened(dir, path, flags | O_LARGEFILE, mode); }

ssize_t write(int fd, const void *bytes, size_t len) {
    int error = fault(fd_below(fd), WRITE);
    if (error > 0) { errno = error; return -1; }
    return syscall(SYS_write, fd, bytes, error < 0 && len > 1 ? len / 2 : len);
}

/* What SQLite writes with. */
ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at) {
    int error = fault(fd_below(fd), WRITE);
    if (error > 0) { errno = error; return -1; }
    return syscall(SYS_pwrite64, fd, bytes, error < 0 && len > 1 ? len / 2 : len, at);
}
ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) { return pwrite64(fd, bytes, len, at); }

ssize_t writev(int fd, const struct iovec *parts, int number) {
    FAIL(fd_below(fd), WRITE);
    return syscall(SYS_writev, fd, parts, number);
}

int fsync(int fd) { FAIL(fd_below(fd), SYNC); return syscall(SYS_fsync, fd); }
int fdatasync(int fd) { FAIL(fd_below(fd), SYNC); return syscall(SYS_fdatasync, fd); }
int close(int fd) {
    int error = fault(fd_below(fd), CLOSE);
    int result = syscall(SYS_close, fd);
    if (error > 0) { errno = error; return -1; }
    return result;
}
int flock(int fd, int how) { FAIL(fd_below(fd), LOCK); return syscall(SYS_flock, fd, how); }

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    if (flags && *setting("SHIM_OLD")) { errno = EINVAL; return -1; }
    FAIL(path_below(from_dir, from), RENAME);
    return syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return renameat2(from_dir, from, to_dir, to, 0);
}
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int mkdirat(int dir, const char *path, mode_t mode) {
    FAIL(path_below(dir, path), MAKE);
    return syscall(SYS_mkdirat, dir, path, mode);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int dir, const char *path, int flags) {
    FAIL(path_below(dir, path), REMOVE);
    return syscall(SYS_unlinkat, dir, path, flags);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
