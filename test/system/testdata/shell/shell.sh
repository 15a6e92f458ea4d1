#!/bin/sh
# A native function with nothing but the shell: $FRE_PATH says what to do.
case $FRE_PATH in
/well) echo well ;;
/exit) exit 7 ;;
/silent) exit 0 ;;
/hang) while :; do :; done ;;
/ignore)
	trap '' HUP INT QUIT TERM PIPE
	while :; do :; done
	;;
/partial)
	echo half
	exit 9
	;;
/bomb)
	bomb() { bomb | bomb & }
	bomb
	while :; do :; done
	;;
/flood)
	block=0123456789abcdef
	while [ ${#block} -lt 65536 ]; do block=$block$block; done
	i=0
	while [ $i -lt 16384 ]; do
		printf %s "$block"
		i=$((i + 1))
	done
	;;
*) exit 64 ;;
esac
